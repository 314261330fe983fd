//! Names close to one that does not exist.

use crate::error::{Error, ErrorKind};
use crate::tensor::TensorMeta;
use crate::text;

/// Most names suggested.
const SUGGESTIONS: usize = 3;

/// Longer names are not compared: nobody mistypes them, and comparing takes quadratic time.
const LONGEST_COMPARED: usize = 256;

/// The error for a tensor `wanted` that is not among `tensors`, with up to three that it could
/// stand for.
pub(crate) fn no_such_tensor(wanted: &str, tensors: &[TensorMeta]) -> Error {
    let what = format!(
        "no tensor of this name among the {} of the checkpoint",
        tensors.len()
    );
    let error = Error::new(ErrorKind::NoSuchTensor, what).tensor(wanted);
    let near: Vec<String> = nearest(wanted, tensors.iter().map(|tensor| &*tensor.name))
        .into_iter()
        .map(text::quoted)
        .collect();
    if near.is_empty() {
        error
    } else {
        error.help(format!("did you mean {}?", near.join(" or ")))
    }
}

/// The closest first: names with a part more or fewer in front (`layers.0.w` for
/// `model.layers.0.w`), then names a few edits away.
fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    if wanted.is_empty() || wanted.len() > LONGEST_COMPARED {
        return Vec::new();
    }
    // A letter swapped in a short name, a number and a word in a long one.
    let furthest = (wanted.len() / 5).clamp(1, 6);
    let mut best: Vec<(usize, &str)> = Vec::new();
    for name in names {
        let distance = if is_tail(wanted, name) || is_tail(name, wanted) {
            0
        } else if name.len().abs_diff(wanted.len()) > furthest {
            continue;
        } else {
            strsim::levenshtein(wanted, name)
        };
        let at = best.partition_point(|&(other, _)| other <= distance);
        if distance <= furthest && at < SUGGESTIONS {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
