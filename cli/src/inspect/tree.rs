//! Names of tensors as a tree, with equal numbered branches shown once.

use std::collections::BTreeMap;
use std::io::{self, Write};

use tensora::{Dtype, TensorMeta, text};

use crate::output::{counted, shape};
use crate::size;

/// Parts of a name that make levels of their own. The rest stays together: names are not trusted.
const MAX_LEVELS: usize = 24;

/// Tensors by the parts of their names.
#[derive(Default, PartialEq)]
pub struct Tree<'a> {
    branches: BTreeMap<Part<'a>, Tree<'a>>,
    tensor: Option<(Dtype, &'a [u64])>,
    count: u64,
    bytes: u64,
}

/// A part of a name. Numbers come in their own order, before words.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Part<'a> {
    /// The value, and the digits as they are written.
    Number(u64, &'a str),
    Word(&'a str),
}

impl<'a> Part<'a> {
    fn new(text: &'a str) -> Self {
        match text.parse() {
            Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Self::Number(number, text)
            }
            _ => Self::Word(text),
        }
    }

    fn text(self) -> &'a str {
        match self {
            Self::Number(_, text) | Self::Word(text) => text,
        }
    }
}

impl<'a> Tree<'a> {
    pub fn new(tensors: &'a [TensorMeta]) -> Self {
        let mut root = Self::default();
        for tensor in tensors {
            let bytes = tensor.nbytes();
            let mut at = &mut root;
            at.count += 1;
            at.bytes += bytes;
            for part in tensor.name.splitn(MAX_LEVELS, '.') {
                at = at.branches.entry(Part::new(part)).or_default();
                at.count += 1;
                at.bytes += bytes;
            }
            at.tensor = Some((tensor.dtype, &tensor.shape));
        }
        root
    }

    /// One line for each branch and each tensor. `fold`: consecutive numbers with equal contents
    /// share a line.
    pub fn print(&self, out: &mut dyn Write, fold: bool) -> io::Result<()> {
        self.print_branches(out, fold, 0)
    }

    fn print_branches(&self, out: &mut dyn Write, fold: bool, depth: usize) -> io::Result<()> {
        let branches: Vec<(Part, &Tree)> =
            self.branches.iter().map(|(&p, tree)| (p, tree)).collect();
        let mut rest = &branches[..];
        while let Some(&(part, branch)) = rest.first() {
            let run = if fold { run_length(rest) } else { 1 };
            let mut label = text::name(part.text()).into_owned();
            // Branches without a choice are one line: `self_attn.q_proj.weight`.
            let mut shown = branch;
            if run > 1 {
                label = format!("{label}..{} (x{run})", rest[run - 1].0.text());
            } else {
                while shown.tensor.is_none()
                    && let Some((&next, only)) = shown.branches.first_key_value()
                    && shown.branches.len() == 1
                    && matches!(next, Part::Word(_))
                {
                    label = format!("{label}.{}", text::name(next.text()));
                    shown = only;
                }
            }
            shown.print_line(out, &label, run as u64, depth)?;
            shown.print_branches(out, fold, depth + 1)?;
            rest = &rest[run..];
        }
        Ok(())
    }

    fn print_line(
        &self,
        out: &mut dyn Write,
        label: &str,
        times: u64,
        depth: usize,
    ) -> io::Result<()> {
        let label = format!("{:indent$}{label}", "", indent = 2 * depth);
        let each = if times > 1 { " each" } else { "" };
        let (count, bytes) = (counted(self.count, "tensor"), size::bytes(self.bytes));
        match self.tensor {
            Some((dtype, dims)) if self.branches.is_empty() => {
                writeln!(out, "{label:<48}  {dtype} {}  {bytes}{each}", shape(dims))
            }
            Some((dtype, dims)) => writeln!(
                out,
                "{label:<48}  {dtype} {}; {count}, {bytes}{each}",
                shape(dims)
            ),
            None => writeln!(out, "{label:<48}  {count}, {bytes}{each}"),
        }
    }
}

/// How many branches from the first on have consecutive numbers and equal contents.
fn run_length(branches: &[(Part, &Tree)]) -> usize {
    let Some(&(Part::Number(first, _), tree)) = branches.first() else {
        return 1;
    };
    let continues = |(step, &(part, other)): (usize, &(Part, &Tree))| {
        matches!(part, Part::Number(number, _) if Some(number) == first.checked_add(step as u64))
            && other == tree
    };
    let run = branches
        .iter()
        .enumerate()
        .skip(1)
        .take_while(|&branch| continues(branch));
    1 + run.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(names: &[(&str, u64)], fold: bool) -> String {
        let tensors: Vec<TensorMeta> = names
            .iter()
            .map(|&(name, rows)| TensorMeta {
                name: name.into(),
                dtype: Dtype::U8,
                shape: [rows].as_slice().into(),
                strides: None,
                extents: Default::default(),
            })
            .collect();
        let mut text = Vec::new();
        Tree::new(&tensors).print(&mut text, fold).unwrap();
        let text = String::from_utf8(text).unwrap();
        let squeezed = text.lines().map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let indent = line.len() - line.trim_start().len();
            format!("{}{}\n", " ".repeat(indent), words.join(" "))
        });
        squeezed.collect()
    }

    #[test]
    fn equal_layers_share_a_line_and_others_do_not() {
        let names = [
            ("h.10.w", 4),
            ("h.0.w", 4),
            ("h.1.w", 4),
            ("h.2.w", 8),
            ("h.9.w", 4),
            ("out", 1),
        ];
        assert_eq!(
            print(&names, true),
            "h 5 tensors, 24 B\n  0..1 (x2) 1 tensor, 4 B each\n    w U8 [4] 4 B\n  \
             2.w U8 [8] 8 B\n  9..10 (x2) 1 tensor, 4 B each\n    w U8 [4] 4 B\nout U8 [1] 1 B\n"
        );
        assert_eq!(print(&names, false).matches("U8").count(), 6);
    }

    #[test]
    fn any_name_has_its_place() {
        let deep = "a.".repeat(10_000);
        let names = [
            ("", 1),
            (".", 1),
            ("a", 1),
            ("a.b", 1),
            ("a.00", 1),
            ("a.0", 1),
            (&*deep, 1),
        ];
        assert_eq!(print(&names, true).matches("U8").count(), 7);
    }
}
