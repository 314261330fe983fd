//! Small checkpoints and selections decoded from arbitrary bytes: what property tests and fuzzing
//! plan. The same bytes always give the same case.

use smallvec::SmallVec;

use super::check::{check_figures, check_invariants, execute_naively, slice_naively};
use super::{PlanOptions, PlanSource, ReadPlan, Selection, Slice, Split, Steps};
use crate::dtype::Dtype;
use crate::error::ErrorKind;
use crate::tensor::{Extent, Shape, TensorMeta, contiguous_strides};

/// Results beyond this are not compared byte by byte: expanded views can be made of any size.
const MAX_COMPARED: u64 = 1 << 16;

/// Tensors in memory, and what to read of them.
#[derive(Debug)]
pub struct Case {
    /// The contents of the sources.
    pub sources: Vec<Vec<u8>>,
    /// Tensors in them.
    pub tensors: Vec<TensorMeta>,
    /// For each tensor whether it is selected, and its slice.
    pub wanted: Vec<(bool, Option<Slice>)>,
    /// The same as a selection.
    pub selection: Selection,
    /// How to plan it.
    pub options: PlanOptions,
}

/// Fuzzing: plans a damaged case. Nothing may panic, and a plan that comes out must keep its promises.
pub fn plan(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut case = Case::decode(&mut input);
    let mut sources = case.plan_sources();
    damage(&mut input, &mut case, &mut sources);
    let Ok(plan) = ReadPlan::from_parts(&case.tensors, sources, &case.selection, &case.options)
    else {
        return;
    };
    check_invariants(&plan);
    if plan.sources.iter().all(|source| source.len <= MAX_COMPARED) {
        check_figures(&plan);
        if plan.figures().result_bytes <= MAX_COMPARED {
            execute_naively(&plan, &case.sources_of(&plan));
        }
    }
}

/// Plans an undamaged case, carries the plan out, and compares every byte.
pub fn plan_and_compare(bytes: &[u8]) {
    let case = Case::decode(&mut Input(bytes));
    let selected = || {
        case.tensors
            .iter()
            .zip(&case.wanted)
            .filter(|(_, (on, _))| *on)
    };
    let expected: Option<Vec<Vec<u8>>> = selected()
        .map(|(meta, (_, slice))| slice_naively(meta, slice.as_ref(), &case.sources))
        .collect();
    let plan = ReadPlan::from_parts(
        &case.tensors,
        case.plan_sources(),
        &case.selection,
        &case.options,
    );
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            let small_view =
                |(meta, _): (&TensorMeta, _)| meta.dtype.bits() < 8 && meta.strides.is_some();
            match error.kind() {
                ErrorKind::InvalidArgument => assert!(expected.is_none(), "{error}"),
                // Views of such elements can fail either way, and some of them are in order.
                ErrorKind::Unsupported => assert!(selected().any(small_view), "{error}"),
                _ => panic!("{error}"),
            }
            return;
        }
    };
    check_invariants(&plan);
    check_figures(&plan);
    let names: Vec<&str> = plan.tensors.iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(
        names,
        selected().map(|(meta, _)| &*meta.name).collect::<Vec<_>>()
    );
    let expected = expected.expect("elements in parts of bytes cannot be planned");
    assert_eq!(execute_naively(&plan, &case.sources), expected);
}

impl Case {
    /// The case that `bytes` stand for.
    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self::decode(&mut Input(bytes))
    }

    /// Its plan, where there is one.
    #[cfg(test)]
    pub(crate) fn plan(&self) -> Option<ReadPlan> {
        let sources = self.plan_sources();
        ReadPlan::from_parts(&self.tensors, sources, &self.selection, &self.options).ok()
    }

    /// A case that can be planned, but for slices within a byte.
    fn decode(input: &mut Input<'_>) -> Self {
        let mut case = Self {
            sources: vec![Vec::new(); 1 + input.below(3) as usize],
            tensors: Vec::new(),
            wanted: Vec::new(),
            selection: Selection::all(),
            options: PlanOptions {
                gap_limit: [0, 1, 3, 9, 40, 32 << 10][input.below(6) as usize],
                dense_row_limit: [0, 8, 40, 4 << 20][input.below(4) as usize],
            },
        };
        for index in 0..1 + input.below(6) {
            let meta = case.tensor(input, index);
            case.tensors.push(meta);
        }
        let choice = input.below(3);
        for index in 0..case.tensors.len() {
            let on = choice == 0 || input.below(3) > 0;
            let slice = (on && input.below(3) > 0).then(|| slice_of(input, &case.tensors[index]));
            case.wanted.push((on, slice));
        }
        let names = |on: bool| {
            let pairs = case.tensors.iter().zip(&case.wanted);
            pairs
                .filter(move |(_, wanted)| wanted.0 == on)
                .map(|(meta, _)| &*meta.name)
        };
        if names(false).next().is_some() {
            case.selection = match (choice, names(true).collect::<Vec<_>>()) {
                (1, names) if !names.is_empty() => {
                    let literal: Vec<String> =
                        names.iter().map(|name| name.replace('[', "[[]")).collect();
                    Selection::glob(&format!("{{{}}}", literal.join(","))).unwrap()
                }
                (_, names) => Selection::names(names),
            };
        }
        for (meta, (_, slice)) in case.tensors.iter().zip(&case.wanted) {
            if let Some(slice) = slice {
                let selection = std::mem::take(&mut case.selection);
                case.selection = selection.with_slice(&meta.name, slice.clone()).unwrap();
            }
        }
        case
    }

    fn plan_sources(&self) -> Vec<PlanSource> {
        let sources = self.sources.iter().enumerate();
        sources
            .map(|(index, bytes)| PlanSource {
                path: format!("source-{index}").into(),
                len: bytes.len() as u64,
            })
            .collect()
    }

    /// Contents as long as a plan believes.
    fn sources_of(&self, plan: &ReadPlan) -> Vec<Vec<u8>> {
        let sources = plan.sources.iter();
        sources.map(|source| vec![7; source.len as usize]).collect()
    }

    fn tensor(&mut self, input: &mut Input<'_>, index: u64) -> TensorMeta {
        let name = format!(
            "{}[{index}].weight",
            ["a", "layer", ""][input.below(3) as usize]
        );
        let kind = input.below(8);
        if kind == 0
            && let Some(other) = self.tensors.get(input.below(6) as usize)
        {
            // Tied: the same bytes, as they are or looked at as bytes.
            let mut meta = other.clone();
            meta.name = name.into();
            if input.below(2) == 0 {
                meta.dtype = Dtype::U8;
                meta.shape = [meta.stored_bytes()].as_slice().into();
                meta.strides = None;
            }
            return meta;
        }
        let mut dtype = Dtype::ALL[input.below(Dtype::ALL.len() as u64) as usize];
        let rank = input.below(5) as usize;
        let mut shape: Shape = (0..rank).map(|_| input.dimension()).collect();
        if dtype.nbytes(&shape).is_none() {
            match shape.last_mut() {
                Some(last) => *last *= 4,
                None => dtype = Dtype::BF16,
            }
        }
        let strides = match kind {
            1..=3 => Some(strides_of(input, &shape).into_vec().into_boxed_slice()),
            _ => None,
        };
        let stored = match &strides {
            Some(_) if shape.contains(&0) => 0,
            Some(strides) => {
                let steps = shape
                    .iter()
                    .zip(strides)
                    .map(|(rows, stride)| (rows - 1) * stride);
                let bits = (steps.sum::<u64>() + 1) * u64::from(dtype.bits());
                bits.div_ceil(8) + input.below(3)
            }
            None => dtype.nbytes(&shape).unwrap(),
        };
        let extents = self.store(input, stored);
        TensorMeta {
            name: name.into(),
            dtype,
            shape,
            strides,
            extents,
        }
    }

    /// Puts so many new bytes into the sources, in one to three extents.
    fn store(&mut self, input: &mut Input<'_>, mut len: u64) -> SmallVec<[Extent; 1]> {
        let mut extents = SmallVec::new();
        while len > 0 {
            let source = input.below(self.sources.len() as u64);
            let part = match extents.len() {
                0 | 1 if input.below(3) == 0 => 1 + input.below(len),
                _ => len,
            };
            let bytes = &mut self.sources[source as usize];
            let gap = input.below(4) * input.below(8);
            bytes.extend((0..gap).map(|_| 0xee));
            extents.push(Extent {
                source: source as u32,
                offset: bytes.len() as u64,
                len: part,
            });
            for _ in 0..part {
                // Any bytes do that repeat with no period of a tensor.
                let place = (bytes.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ source;
                bytes.push((place >> 32) as u8);
            }
            len -= part;
        }
        extents
    }
}

/// Strides of a view: transposed, with holes, expanded or overlapping.
fn strides_of(input: &mut Input<'_>, shape: &[u64]) -> SmallVec<[u64; 4]> {
    let mut order: SmallVec<[usize; 4]> = (0..shape.len()).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, input.below(index as u64 + 1) as usize);
    }
    let permuted: SmallVec<[u64; 4]> = order.iter().map(|&dim| shape[dim]).collect();
    let mut strides: SmallVec<[u64; 4]> = SmallVec::from_elem(0, shape.len());
    let (mut holes, expand) = (1 + input.below(2), input.below(3));
    for (&dim, stride) in order.iter().zip(contiguous_strides(&permuted)) {
        strides[dim] = match expand {
            1 if input.below(3) == 0 => 0,
            2 if input.below(4) == 0 => 1 + input.below(3),
            _ => stride * holes,
        };
        holes += input.below(4) / 3;
    }
    strides
}

fn slice_of(input: &mut Input<'_>, meta: &TensorMeta) -> Slice {
    if input.below(3) == 0 && !meta.shape.is_empty() {
        let dim = input.below(meta.shape.len() as u64) as usize;
        let world = 1 + input.below(5);
        let split = match meta.shape[dim] % world {
            0 => Split::Even,
            _ => Split::Balanced,
        };
        return Slice::Shard {
            dim,
            rank: input.below(world),
            world,
            split,
        };
    }
    if input.below(2) == 0 {
        let steps = meta.shape.iter().map(|&rows| {
            (input.below(3) > 0).then(|| {
                let (start, step) = (input.below(rows + 1), 1 + input.below(4));
                let most = (rows - start).div_ceil(step);
                let count = most - input.below(2).min(most);
                Steps { start, count, step }
            })
        });
        return Slice::Steps(steps.collect());
    }
    let ranges = meta.shape.iter().map(|&rows| {
        (input.below(2) == 0).then(|| {
            let start = input.below(rows + 1);
            start..start + input.below(rows - start + 1)
        })
    });
    Slice::Ranges(ranges.collect())
}

/// Replaces numbers of a case by ones that it should be refused for.
fn damage(input: &mut Input<'_>, case: &mut Case, sources: &mut [PlanSource]) {
    for _ in 0..input.below(4) {
        let index = input.below(case.tensors.len() as u64) as usize;
        let dtype = Dtype::ALL[input.below(Dtype::ALL.len() as u64) as usize];
        let meta = &mut case.tensors[index];
        let number = input.number();
        let source = input.below(sources.len() as u64) as usize;
        match input.below(10) {
            0 => meta.dtype = dtype,
            1 => meta.shape.push(number),
            2 => meta.shape.iter_mut().for_each(|rows| *rows = number),
            3 => meta.strides = Some(meta.shape.iter().map(|_| input.number()).collect()),
            4 => meta
                .extents
                .iter_mut()
                .for_each(|extent| extent.offset = number),
            5 => meta
                .extents
                .iter_mut()
                .for_each(|extent| extent.len = number),
            6 => meta
                .extents
                .iter_mut()
                .for_each(|extent| extent.source = number as u32),
            7 => sources[source].len = number,
            8 => {
                // As large as can be, and in bounds.
                sources[source].len = u64::MAX;
                meta.dtype = dtype;
                meta.shape = (0..3).map(|_| input.number()).collect();
                meta.strides = None;
                meta.extents = SmallVec::from_slice(&[Extent {
                    source: source as u32,
                    offset: number % 64,
                    len: dtype.nbytes(&meta.shape).unwrap_or(number),
                }]);
            }
            _ => {
                let dims = 0..input.below(4);
                let slice = if input.below(2) == 0 {
                    let range = |_| (input.below(2) == 0).then(|| input.number()..input.number());
                    Slice::Ranges(dims.map(range).collect())
                } else {
                    let steps = |_| {
                        (input.below(2) == 0).then(|| Steps {
                            start: input.number(),
                            count: input.number(),
                            step: input.number(),
                        })
                    };
                    Slice::Steps(dims.map(steps).collect())
                };
                let target = ["*", "a*", "layer[[]1].weight", "b", "["][input.below(5) as usize];
                let selection = std::mem::take(&mut case.selection);
                case.selection = selection
                    .clone()
                    .with_slice(target, slice)
                    .unwrap_or(selection);
            }
        }
    }
}

/// Choices read off bytes; zeros when they run out.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }

    /// A number below `limit`, which is small in most uses.
    fn below(&mut self, limit: u64) -> u64 {
        let high = if limit > 256 { self.byte() } else { 0 };
        (u64::from(high) << 8 | u64::from(self.byte())) % limit
    }

    /// Mostly small, seldom 0 or one row.
    fn dimension(&mut self) -> u64 {
        [2, 3, 4, 8, 5, 2, 3, 1, 7, 2, 4, 0][self.below(12) as usize]
    }

    /// Any number, with a liking for borders.
    fn number(&mut self) -> u64 {
        let near = u64::from(self.byte() % 5);
        match self.below(8) {
            0 => u64::MAX - near,
            1 => (1 << 63) - 2 + near,
            2 => (1 << 61) - 2 + near,
            3 => (1 << 32) - 2 + near,
            4 => 1 << self.below(64),
            5 => 1 << 20,
            _ => near,
        }
    }
}
