//! Names that a mistyped one could stand for.

/// Longer names are not compared: nobody mistypes them, and comparing takes quadratic time.
const LONGEST_COMPARED: usize = 256;

/// Up to three of `names` that `wanted` could stand for, nearest first: those that have it as their
/// end or are its end at a dot (a missing or an additional prefix), then those at most a third of
/// its length away in edits.
pub(crate) fn near_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    if wanted.is_empty() || wanted.len() > LONGEST_COMPARED {
        return Vec::new();
    }
    let ends_with = |long: &str, short: &str| {
        long.strip_suffix(short)
            .is_some_and(|prefix| prefix.ends_with('.'))
    };
    let furthest = (wanted.len() / 3).max(1);
    let mut near: Vec<(usize, &str)> = Vec::with_capacity(4);
    for name in names {
        if name.is_empty() || name.len() > LONGEST_COMPARED {
            continue;
        }
        // What is already known to be nearer bounds what is worth finding out.
        let limit = if near.len() < 3 {
            furthest + 1
        } else {
            near[2].0
        };
        let distance = if ends_with(name, wanted) || ends_with(wanted, name) {
            0
        } else if name.len().abs_diff(wanted.len()) >= limit {
            continue;
        } else {
            edits(wanted.as_bytes(), name.as_bytes(), limit)
        };
        if distance < limit {
            let place = near.partition_point(|(other, _)| *other <= distance);
            near.insert(place, (distance, name));
            near.truncate(3);
        }
    }
    near.into_iter().map(|(_, name)| name).collect()
}

/// The number of bytes to insert, delete or replace to get from one to the other, or any number
/// not below `limit` when it is at least that.
fn edits(from: &[u8], to: &[u8], limit: usize) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        let mut least = row[0];
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
            least = least.min(row[j + 1]);
        }
        if least >= limit {
            return least;
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_few_and_near() {
        let names = [
            "aaaa",
            "aaab",
            "aabb",
            "abbb",
            "bbbb",
            "x.aaaa",
            "aaaaaaaaaaaa",
        ];
        assert_eq!(
            near_names("aaaa", names.into_iter()),
            ["aaaa", "x.aaaa", "aaab"]
        );
        assert_eq!(near_names("zzzz", names.into_iter()), [""; 0]);
        assert_eq!(near_names("", names.into_iter()), [""; 0]);
        assert_eq!(edits(b"kitten", b"sitting", 100), 3);
        assert!(edits(b"kitten", b"xxxxxxxx", 2) >= 2);
    }
}
