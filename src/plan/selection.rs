//! Which tensors, and which parts of them.

use std::collections::HashMap;
use std::fmt;

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;

use super::slice::Slice;
use crate::error::{Error, ErrorKind, Result};
use crate::near::no_such_tensor;
use crate::tensor::TensorMeta;
use crate::text;

/// Which tensors of a checkpoint to read, and which parts of them. The default is all of it.
///
/// ```
/// use tensora::plan::{Selection, Slice, Split};
///
/// # fn main() -> tensora::Result<()> {
/// // Two layers, and this rank's columns of their output projections.
/// let selection = Selection::glob("model.layers.[01].*")?.with_slice(
///     "*.o_proj.weight",
///     Slice::Shard { dim: 1, rank: 3, world: 8, split: Split::Even },
/// )?;
/// # let _ = selection;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// The union of these is selected.
    wanted: Vec<Wanted>,
    slices: Vec<SliceRule>,
}

#[derive(Debug, Clone, PartialEq)]
enum Wanted {
    All,
    Names(Vec<Box<str>>),
    Pattern(Pattern),
}

#[derive(Debug, Clone, PartialEq)]
struct SliceRule {
    /// A tensor's name or, where no tensor has it, a glob.
    target: Box<str>,
    slice: Slice,
}

/// A selected tensor: its place in the list of tensors, and the slice that applies to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Selected<'a> {
    pub index: usize,
    pub slice: Option<&'a Slice>,
}

impl Default for Selection {
    fn default() -> Self {
        Self::all()
    }
}

impl Selection {
    /// Every tensor.
    pub fn all() -> Self {
        Self::of(Wanted::All)
    }

    /// The tensors with exactly these names; characters that globs give a meaning have none here.
    /// A name that no tensor has is an error when the plan is made.
    pub fn names<I, S>(names: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        Self::of(Wanted::Names(
            names.into_iter().map(|name| name.as_ref().into()).collect(),
        ))
    }

    /// The tensors whose whole name matches a glob: `*` is any text (dots and slashes too), `?` one
    /// character, `[0-9]` one of a class, `{q,k,v}` one of several; a backslash takes the next
    /// character as it is. A glob that matches nothing is an error when the plan is made.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a malformed glob.
    pub fn glob(pattern: &str) -> Result<Self> {
        Ok(Self::of(Wanted::Pattern(Pattern::glob(pattern)?)))
    }

    /// The tensors in whose name a regular expression finds a match; `^` and `$` tie it to the
    /// ends. An expression that matches nothing is an error when the plan is made.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a malformed expression.
    pub fn regex(pattern: &str) -> Result<Self> {
        let regex = Regex::new(pattern).map_err(|error| {
            invalid(format!("{pattern:?} is not a regular expression")).because(error)
        })?;
        Ok(Self::of(Wanted::Pattern(Pattern::Regex(regex))))
    }

    /// What either selection has. The slices of both apply to all of it.
    #[must_use]
    pub fn or(mut self, other: Selection) -> Self {
        self.wanted.extend(other.wanted);
        self.slices.extend(other.slices);
        self
    }

    /// Reads only a part of the selected tensor of this name or, where no tensor has this name, of
    /// every selected tensor that it matches as a glob. When the plan is made it is an error that
    /// none matches, that two slices match one tensor, or that the slice does not fit one of them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a slice that fits no tensor whatever: a range that ends
    /// before it starts, steps of 0, a rank beyond the number of ranks, no ranks.
    pub fn with_slice(mut self, name_or_glob: &str, slice: Slice) -> Result<Self> {
        slice.check().map_err(|error| error.tensor(name_or_glob))?;
        self.slices.push(SliceRule {
            target: name_or_glob.into(),
            slice,
        });
        Ok(self)
    }

    /// Whether a tensor of this name is selected.
    #[cfg(feature = "hub")]
    pub(crate) fn picks(&self, name: &str) -> bool {
        self.wanted.iter().any(|wanted| match wanted {
            Wanted::All => true,
            Wanted::Names(names) => names.iter().any(|wanted| **wanted == *name),
            Wanted::Pattern(pattern) => pattern.matches(name),
        })
    }

    /// All names, where nothing is selected or sliced but by its name: what a checkpoint can look up
    /// instead of going through all of its tensors.
    pub(crate) fn only_names(&self) -> Option<Vec<&str>> {
        let mut names = Vec::new();
        for wanted in &self.wanted {
            let Wanted::Names(wanted) = wanted else {
                return None;
            };
            names.extend(wanted.iter().map(|name| &**name));
        }
        // A few: what is sliced is looked for among them below.
        let is_named = |rule: &SliceRule| names.len() <= 64 && names.contains(&&*rule.target);
        self.slices.iter().all(is_named).then_some(names)
    }

    fn of(wanted: Wanted) -> Self {
        Self {
            wanted: vec![wanted],
            slices: Vec::new(),
        }
    }

    /// The selected ones of `tensors`, in their order. Linear in tensors and names, times the
    /// number of patterns.
    pub(super) fn resolve(&self, tensors: &[TensorMeta]) -> Result<Vec<Selected<'_>>> {
        let by_name = match (&self.wanted[..], &self.slices[..]) {
            ([Wanted::All | Wanted::Pattern(_)], []) => HashMap::new(),
            _ => tensors
                .iter()
                .enumerate()
                .map(|(index, meta)| (&*meta.name, index))
                .collect(),
        };
        let mut chosen = vec![false; tensors.len()];
        for wanted in &self.wanted {
            match wanted {
                Wanted::All => chosen.fill(true),
                Wanted::Names(names) => {
                    for name in names {
                        let index = by_name
                            .get(&**name)
                            .ok_or_else(|| no_such_tensor(name, tensors))?;
                        chosen[*index] = true;
                    }
                }
                Wanted::Pattern(pattern) => {
                    let mut any = false;
                    for (chosen, meta) in chosen.iter_mut().zip(tensors) {
                        if pattern.matches(&meta.name) {
                            (*chosen, any) = (true, true);
                        }
                    }
                    if !any {
                        return Err(nothing_matches(pattern, tensors));
                    }
                }
            }
        }
        let slices = self.resolve_slices(tensors, &by_name, &chosen)?;
        Ok((0..tensors.len())
            .filter(|&index| chosen[index])
            .map(|index| Selected {
                index,
                slice: slices
                    .get(index)
                    .and_then(|rule| rule.map(|rule| &self.slices[rule].slice)),
            })
            .collect())
    }

    /// For each tensor, which slice rule applies to it; empty where there are no rules.
    fn resolve_slices(
        &self,
        tensors: &[TensorMeta],
        by_name: &HashMap<&str, usize>,
        chosen: &[bool],
    ) -> Result<Vec<Option<usize>>> {
        if self.slices.is_empty() {
            return Ok(Vec::new());
        }
        let mut rules = vec![None; tensors.len()];
        let mut apply = |index: usize, rule: usize| match rules[index].replace(rule) {
            None => Ok(()),
            Some(earlier) => Err(invalid(format!(
                "two slices match it: {:?} and {:?}",
                self.slices[earlier].target, self.slices[rule].target
            ))
            .tensor(&*tensors[index].name)
            .help("give each tensor one slice")),
        };
        for (rule, SliceRule { target, .. }) in self.slices.iter().enumerate() {
            if let Some(&index) = by_name.get(&**target) {
                if !chosen[index] {
                    return Err(invalid("there is a slice for it, but it is not selected")
                        .tensor(&**target)
                        .help("select the tensor, or leave the slice out"));
                }
                apply(index, rule)?;
                continue;
            }
            if !target.contains(['*', '?', '[', '{', '\\']) {
                return Err(no_such_tensor(target, tensors));
            }
            let pattern = Pattern::glob(target)?;
            let mut any = false;
            for index in 0..tensors.len() {
                if chosen[index] && pattern.matches(&tensors[index].name) {
                    any = true;
                    apply(index, rule)?;
                }
            }
            if !any {
                let count = chosen.iter().filter(|chosen| **chosen).count();
                return Err(Error::new(
                    ErrorKind::NoSuchTensor,
                    format!(
                        "the slice for {target:?} matches none of the {count} selected tensors"
                    ),
                ));
            }
        }
        Ok(rules)
    }
}

#[derive(Clone)]
enum Pattern {
    Glob(GlobMatcher),
    Regex(Regex),
}

impl Pattern {
    fn glob(text: &str) -> Result<Self> {
        // Backslashes escape on every platform: names of tensors are not paths.
        GlobBuilder::new(text)
            .backslash_escape(true)
            .build()
            .map(|glob| Pattern::Glob(glob.compile_matcher()))
            .map_err(|error| invalid(format!("{text:?} is not a glob")).because(error))
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::Glob(glob) => glob.is_match(name),
            Pattern::Regex(regex) => regex.is_match(name),
        }
    }

    fn text(&self) -> &str {
        match self {
            Pattern::Glob(glob) => glob.glob().glob(),
            Pattern::Regex(regex) => regex.as_str(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Pattern::Glob(_) => "glob",
            Pattern::Regex(_) => "regular expression",
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.text() == other.text()
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind(), self.text())
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

fn nothing_matches(pattern: &Pattern, tensors: &[TensorMeta]) -> Error {
    let error = Error::new(
        ErrorKind::NoSuchTensor,
        format!(
            "the {} {:?} matches none of the {} tensors",
            pattern.kind(),
            pattern.text(),
            tensors.len()
        ),
    );
    if tensors.iter().any(|meta| &*meta.name == pattern.text()) {
        return error.help("a tensor has exactly this name: select it by name");
    }
    match tensors.first() {
        Some(meta) => error.help(format!("names look like {}", text::quoted(&meta.name))),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::dtype::Dtype;

    fn tensors(names: &[&str]) -> Vec<TensorMeta> {
        names
            .iter()
            .map(|&name| TensorMeta {
                name: name.into(),
                dtype: Dtype::F32,
                shape: SmallVec::new(),
                strides: None,
                extents: SmallVec::new(),
            })
            .collect()
    }

    const NAMES: [&str; 6] = [
        "model.layers.0.q.weight",
        "model.layers.0.k.weight",
        "model.layers.1.q.weight",
        "lm_head.weight",
        "a[0].w",
        "dir/x",
    ];

    fn picked(selection: &Selection) -> Result<Vec<(&'static str, bool)>> {
        let tensors = tensors(&NAMES);
        let selected = selection.resolve(&tensors)?;
        Ok(selected
            .iter()
            .map(|one| (NAMES[one.index], one.slice.is_some()))
            .collect())
    }

    fn names(selection: &Selection) -> Vec<&'static str> {
        let picked = picked(selection).unwrap();
        picked.into_iter().map(|(name, _)| name).collect()
    }

    fn all_of_it() -> Slice {
        Slice::Ranges(vec![])
    }

    #[test]
    fn every_way_of_selecting_keeps_the_order_of_the_checkpoint() {
        assert_eq!(names(&Selection::default()), NAMES);
        let by_name = Selection::names(["a[0].w", "lm_head.weight", "a[0].w"]);
        assert_eq!(names(&by_name), ["lm_head.weight", "a[0].w"]);
        assert_eq!(names(&Selection::names(["x"; 0])), [""; 0]);
        let glob = Selection::glob("model.*.q.*").unwrap();
        assert_eq!(names(&glob), [NAMES[0], NAMES[2]]);
        assert_eq!(names(&Selection::glob("*x").unwrap()), ["dir/x"]);
        assert_eq!(names(&Selection::glob(r"a\[0].w").unwrap()), ["a[0].w"]);
        let regex = Selection::regex(r"\.[kq]\.").unwrap();
        assert_eq!(names(&regex), NAMES[..3]);
        assert_eq!(
            names(&by_name.or(glob)),
            [NAMES[0], NAMES[2], NAMES[3], NAMES[4]]
        );
    }

    #[test]
    fn selections_compare_by_what_was_written() {
        assert_eq!(
            Selection::glob("a*").unwrap(),
            Selection::glob("a*").unwrap()
        );
        assert_ne!(
            Selection::glob("a*").unwrap(),
            Selection::regex("a*").unwrap()
        );
        assert_eq!(
            format!("{:?}", Selection::glob("a*").unwrap().wanted),
            "[Pattern(glob \"a*\")]"
        );
    }

    #[test]
    fn what_matches_nothing_is_an_error() {
        for (selection, words) in [
            (
                Selection::glob("b*").unwrap(),
                "the glob \"b*\" matches none of the 6",
            ),
            (
                Selection::regex("^b").unwrap(),
                "the regular expression \"^b\"",
            ),
            (Selection::glob("a[0].w").unwrap(), "select it by name"),
            (
                Selection::names(["layers.0.q.weight"]),
                "did you mean \"model.layers.0.q.weight\"",
            ),
            (
                Selection::names(["lm_head.wieght"]),
                "did you mean \"lm_head.weight\"?",
            ),
            (
                Selection::all()
                    .with_slice("model.*.v.*", all_of_it())
                    .unwrap(),
                "none of the 6 selected",
            ),
            (
                Selection::names(["dir/x"])
                    .with_slice("model.*", all_of_it())
                    .unwrap(),
                "none of the 1 selected",
            ),
            (
                Selection::all()
                    .with_slice("lm_head.weights", all_of_it())
                    .unwrap(),
                "did you mean \"lm_head.weight\"",
            ),
        ] {
            let error = picked(&selection).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSuchTensor, "{error}");
            assert!(error.to_string().contains(words), "{words:?} in {error}");
        }
    }

    #[test]
    fn slices_take_a_literal_name_before_a_glob() {
        let literal = Selection::all().with_slice("a[0].w", all_of_it()).unwrap();
        let sliced: Vec<_> = picked(&literal).unwrap();
        assert_eq!(
            sliced
                .iter()
                .filter(|(_, sliced)| *sliced)
                .collect::<Vec<_>>(),
            [&("a[0].w", true)]
        );
        let glob = Selection::all()
            .with_slice("*.q.weight", all_of_it())
            .unwrap();
        assert_eq!(
            picked(&glob)
                .unwrap()
                .iter()
                .filter(|(_, sliced)| *sliced)
                .count(),
            2
        );
    }

    #[test]
    fn slices_that_collide_or_miss_are_invalid() {
        for (selection, words) in [
            (
                Selection::all()
                    .with_slice("*.weight", all_of_it())
                    .and_then(|selection| selection.with_slice("lm_head.weight", all_of_it())),
                "\"*.weight\" and \"lm_head.weight\"",
            ),
            (
                Selection::names(["dir/x"]).with_slice("lm_head.weight", all_of_it()),
                "not selected",
            ),
            (
                Selection::all().with_slice("a[0", all_of_it()),
                "not a glob",
            ),
        ] {
            let error = picked(&selection.unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(words), "{words:?} in {error}");
        }
        assert!(Selection::glob("a[").is_err());
        assert!(Selection::regex("a(").is_err());
        let late = Slice::Shard {
            dim: 0,
            rank: 2,
            world: 2,
            split: super::super::Split::Even,
        };
        assert!(Selection::all().with_slice("x", late).is_err());
    }
}
