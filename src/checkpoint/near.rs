//! Names close to one that does not exist.

/// Most names suggested.
const SUGGESTIONS: usize = 3;

/// Up to three of `known` that `wanted` may have meant, the closest first: names with a part
/// more or fewer in front (`layers.0.w` for `model.layers.0.w`), then names a few edits away.
pub(super) fn nearest<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // A letter swapped in a short name, a number and a word in a long one.
    let limit = (wanted.len() / 5).clamp(1, 6);
    let mut row = Vec::new();
    let mut best: Vec<(usize, &str)> = Vec::new();
    for name in known {
        let distance = if is_tail(wanted, name) || is_tail(name, wanted) {
            0
        } else {
            match edits(wanted.as_bytes(), name.as_bytes(), limit, &mut row) {
                Some(distance) => distance,
                None => continue,
            }
        };
        let at = best.partition_point(|&(other, _)| other <= distance);
        if at < SUGGESTIONS {
            best.insert(at, (distance, name));
            best.truncate(SUGGESTIONS);
        }
    }
    best.into_iter().map(|(_, name)| name).collect()
}

/// Whether `tail` is what follows a dot in `name`.
fn is_tail(tail: &str, name: &str) -> bool {
    !tail.is_empty()
        && name
            .strip_suffix(tail)
            .is_some_and(|front| front.ends_with('.'))
}

/// Insertions, deletions and substitutions between two byte strings, or `None` above `limit`.
fn edits(a: &[u8], b: &[u8], limit: usize, row: &mut Vec<usize>) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    // row[j]: edits between the part of `a` so far and the first j bytes of `b`. Only j within
    // `limit` of the diagonal can stay below it.
    row.clear();
    row.extend(0..=b.len());
    for (i, &x) in a.iter().enumerate() {
        let from = i.saturating_sub(limit);
        let to = (i + limit + 1).min(b.len());
        let mut diagonal = row[from];
        row[from] = if from == 0 { i + 1 } else { limit + 1 };
        let mut smallest = row[from];
        for j in from..to {
            let above = if j + 1 > i + limit {
                limit + 1
            } else {
                row[j + 1]
            };
            let cost = (diagonal + usize::from(x != b[j]))
                .min(above + 1)
                .min(row[j] + 1);
            diagonal = row[j + 1];
            row[j + 1] = cost;
            smallest = smallest.min(cost);
        }
        if smallest > limit {
            return None;
        }
    }
    (row[b.len()] <= limit).then_some(row[b.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn close_names_come_closest_first() {
        let known = [
            "model.layers.0.mlp.weight",
            "model.layers.1.mlp.weight",
            "model.layers.0.mlp.bias",
            "model.embed.weight",
            "lm_head.weight",
        ];
        let near = |wanted| nearest(wanted, known.into_iter());
        assert_eq!(near("layers.0.mlp.weight"), ["model.layers.0.mlp.weight"]);
        assert_eq!(near("module.lm_head.weight"), ["lm_head.weight"]);
        assert_eq!(
            near("model.layers.1.mlp.wieght"),
            ["model.layers.1.mlp.weight", "model.layers.0.mlp.weight"]
        );
        assert!(near("something else entirely").is_empty());
        assert!(near("").is_empty());
    }

    /// The textbook table, the oracle of the banded version.
    fn all_edits(a: &[u8], b: &[u8]) -> usize {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                table[i][j] = if i == 0 || j == 0 {
                    i + j
                } else {
                    (table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]))
                        .min(table[i - 1][j] + 1)
                        .min(table[i][j - 1] + 1)
                };
            }
        }
        table[a.len()][b.len()]
    }

    proptest! {
        #[test]
        fn the_banded_distance_is_the_full_one_within_the_limit(
            a in "[abc]{0,12}", b in "[abc]{0,12}", limit in 0_usize..7,
        ) {
            let full = all_edits(a.as_bytes(), b.as_bytes());
            let banded = edits(a.as_bytes(), b.as_bytes(), limit, &mut Vec::new());
            prop_assert_eq!(banded, (full <= limit).then_some(full));
        }
    }
}
