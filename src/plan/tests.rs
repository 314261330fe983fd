//! Plans of given tensors, and plans of any tensors against naive ones.

use proptest::prelude::*;

use super::cases;
use super::check::{check_figures, check_invariants};
use super::*;

mod steps;

fn meta(name: &str, dtype: Dtype, shape: &[u64], extents: &[(u32, u64, u64)]) -> TensorMeta {
    TensorMeta {
        name: name.into(),
        dtype,
        shape: shape.into(),
        strides: None,
        extents: extents
            .iter()
            .map(|&(source, offset, len)| Extent {
                source,
                offset,
                len,
            })
            .collect(),
    }
}

fn sources(lens: &[u64]) -> Vec<PlanSource> {
    lens.iter()
        .enumerate()
        .map(|(index, &len)| PlanSource {
            path: format!("part-{index}").into(),
            len,
        })
        .collect()
}

fn options(gap_limit: u64) -> PlanOptions {
    PlanOptions {
        gap_limit,
        ..PlanOptions::default()
    }
}

/// Plans one tensor with one slice.
fn sliced(meta: &TensorMeta, ranges: Vec<Option<Range<u64>>>, gap_limit: u64) -> Result<ReadPlan> {
    cut(meta, Slice::Ranges(ranges), gap_limit)
}

fn cut(meta: &TensorMeta, slice: Slice, gap_limit: u64) -> Result<ReadPlan> {
    let selection = Selection::all().with_slice(&meta.name, slice)?;
    let len = meta.extents.iter().map(Extent::end).max().unwrap_or(0);
    let lens = [len, len];
    let plan = ReadPlan::from_parts(
        std::slice::from_ref(meta),
        sources(&lens),
        &selection,
        &options(gap_limit),
    )?;
    check_invariants(&plan);
    Ok(plan)
}

/// (offset, run, count, stride, dest) of each piece.
fn runs(plan: &ReadPlan) -> Vec<(u64, u64, u64, u64, u64)> {
    plan.pieces
        .iter()
        .map(|piece| {
            (
                piece.offset,
                piece.run,
                piece.count,
                piece.stride,
                piece.dest,
            )
        })
        .collect()
}

fn kinds(plan: &ReadPlan) -> Vec<(u64, u64, SpanKind)> {
    let spans = plan.spans.iter();
    spans
        .map(|span| (span.offset, span.len, span.kind))
        .collect()
}

#[test]
fn whole_tensors_that_touch_are_one_range() {
    let tensors = [
        meta("a", Dtype::F32, &[2, 2], &[(0, 8, 16)]),
        meta("b", Dtype::U8, &[3], &[(0, 24, 3)]),
        meta("empty", Dtype::F32, &[0, 7], &[]),
        meta("scalar", Dtype::F16, &[], &[(1, 0, 2)]),
    ];
    let plan =
        ReadPlan::from_parts(&tensors, sources(&[27, 2]), &Selection::all(), &options(0)).unwrap();
    check_invariants(&plan);
    check_figures(&plan);
    assert_eq!(
        kinds(&plan),
        [(8, 19, SpanKind::Dense), (0, 2, SpanKind::Dense)]
    );
    assert_eq!(plan.tensors[2].shape.as_slice(), [0, 7]);
    let figures = plan.figures();
    assert_eq!((figures.tensors, figures.files, figures.ranges), (4, 2, 2));
    assert_eq!((figures.needed_bytes, figures.span_bytes), (21, 21));
    assert_eq!(
        (figures.result_bytes, figures.largest_tensor_bytes),
        (21, 16)
    );
}

#[test]
fn a_slice_of_one_dimension_is_one_piece() {
    let tensor = meta("w", Dtype::F16, &[4, 6, 8], &[(0, 100, 384)]);
    let outer = sliced(&tensor, vec![Some(1..3), None, None], 0).unwrap();
    assert_eq!(runs(&outer), [(196, 192, 1, 192, 0)]);
    let middle = sliced(&tensor, vec![None, Some(2..4), None], 0).unwrap();
    assert_eq!(runs(&middle), [(132, 32, 4, 96, 0)]);
    assert_eq!(kinds(&middle), [(132, 320, SpanKind::Rows)]);
    let inner = sliced(&tensor, vec![None, None, Some(5..8)], 0).unwrap();
    assert_eq!(runs(&inner), [(110, 6, 24, 16, 0)]);
    assert_eq!(inner.figures().ranges, 24);
    let column = sliced(&tensor, vec![None, None, Some(7..8)], 14).unwrap();
    assert_eq!(runs(&column), [(114, 2, 24, 16, 0)]);
    assert_eq!(kinds(&column), [(114, 370, SpanKind::Dense)]);
    assert_eq!(column.figures().needed_bytes, 48);
    assert_eq!(column.figures().span_bytes, 370);
}

#[test]
fn several_sliced_dimensions_collapse_as_far_as_they_can() {
    let tensor = meta("w", Dtype::U8, &[4, 6, 8], &[(0, 0, 192)]);
    // One row of the outer dimension: only the inner two are left.
    let one = sliced(&tensor, vec![Some(2..3), Some(1..3), Some(0..4)], 0).unwrap();
    assert_eq!(runs(&one), [(104, 4, 2, 8, 0)]);
    let two = sliced(&tensor, vec![Some(1..3), Some(1..3), Some(0..4)], 0).unwrap();
    assert_eq!(runs(&two), [(56, 4, 2, 8, 0), (104, 4, 2, 8, 8)]);
    assert_eq!(two.tensors[0].gather, None);
}

#[test]
fn slices_of_more_pieces_than_bytes_read_inner_rows_whole() {
    let rows = pieces::FEW_TENSOR_PIECES + 1;
    let tensor = meta("w", Dtype::U8, &[rows, 3, 3], &[(0, 0, rows * 9)]);
    let plan = sliced(&tensor, vec![None, Some(0..2), Some(1..3)], 0).unwrap();
    assert_eq!(runs(&plan), [(1, 5, rows, 9, 0)]);
    assert_eq!(plan.tensors[0].stored_bytes, rows * 5);
    assert_eq!(plan.tensors[0].nbytes, rows * 4);
    let gather = plan.tensors[0].gather.as_ref().unwrap();
    assert_eq!(&*gather.strides, [5, 3, 1]);

    // Where rows are long, pieces are the smaller evil; elements inside of bytes leave no choice.
    let long = meta("w", Dtype::U8, &[rows, 3, 300], &[(0, 0, rows * 900)]);
    let plan = sliced(&long, vec![None, Some(0..2), Some(1..3)], 0).unwrap();
    assert_eq!(plan.pieces.len() as u64, rows);
    assert_eq!(plan.tensors[0].gather, None);
    let small = meta("w", Dtype::F4, &[rows, 4, 4], &[(0, 0, rows * 8)]);
    let plan = sliced(&small, vec![None, Some(0..2), Some(2..4)], 0).unwrap();
    assert_eq!(plan.pieces.len() as u64, rows);

    // Beyond what a plan may have, rows are read whole whatever their length.
    let rows = pieces::MAX_TENSOR_PIECES + 1;
    let long = meta("w", Dtype::U8, &[rows, 3, 300], &[(0, 0, rows * 900)]);
    let plan = sliced(&long, vec![None, Some(0..2), Some(1..3)], 0).unwrap();
    assert_eq!(runs(&plan), [(1, 302, rows, 900, 0)]);
    let small = meta("w", Dtype::F4, &[rows, 4, 4], &[(0, 0, rows * 8)]);
    let error = sliced(&small, vec![None, Some(0..2), Some(2..4)], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn rows_are_dense_only_within_both_limits() {
    let tensor = meta("w", Dtype::U8, &[10, 100], &[(0, 0, 1000)]);
    let selection = Selection::all()
        .with_slice("w", Slice::Ranges(vec![None, Some(0..90)]))
        .unwrap();
    for (gap_limit, dense_row_limit, kind) in [
        (10, 100, SpanKind::Dense),
        (9, 100, SpanKind::Rows),
        (10, 99, SpanKind::Rows),
    ] {
        let options = PlanOptions {
            gap_limit,
            dense_row_limit,
        };
        let tensors = std::slice::from_ref(&tensor);
        let plan = ReadPlan::from_parts(tensors, sources(&[1000]), &selection, &options).unwrap();
        assert_eq!(kinds(&plan), [(0, 990, kind)]);
        assert_eq!(plan.figures().needed_bytes, 900);
    }
}

#[test]
fn transposed_and_expanded_views_read_what_is_stored_once() {
    let mut tensor = meta("w", Dtype::F32, &[3, 5], &[(0, 0, 60)]);
    tensor.strides = Some([1, 3].into());
    let whole = sliced(&tensor, vec![None, None], 0).unwrap();
    assert_eq!(runs(&whole), [(0, 60, 1, 60, 0)]);
    let gather = whole.tensors[0].gather.as_ref().unwrap();
    assert_eq!((gather.offset, &*gather.strides), (0, &[1, 3][..]));
    // The columns of the view are the rows of what is stored, and the other way round.
    let columns = sliced(&tensor, vec![None, Some(1..3)], 0).unwrap();
    assert_eq!(runs(&columns), [(12, 24, 1, 24, 0)]);
    let rows = sliced(&tensor, vec![Some(1..3), None], 0).unwrap();
    assert_eq!(runs(&rows), [(4, 8, 5, 12, 0)]);
    assert_eq!(&*rows.tensors[0].gather.as_ref().unwrap().strides, [1, 2]);

    let mut expanded = meta("e", Dtype::F32, &[1000, 5], &[(0, 0, 20)]);
    expanded.strides = Some([0, 1].into());
    let plan = sliced(&expanded, vec![None, None], 0).unwrap();
    assert_eq!(runs(&plan), [(0, 20, 1, 20, 0)]);
    assert_eq!(
        (plan.tensors[0].nbytes, plan.tensors[0].stored_bytes),
        (20_000, 20)
    );
    assert_eq!(&*plan.tensors[0].gather.as_ref().unwrap().strides, [0, 1]);
}

#[test]
fn rows_are_cut_where_extents_end() {
    // Rows of 10 bytes, of which 2..6 are wanted; the second row is cut inside of that.
    let tensor = meta("w", Dtype::U8, &[4, 10], &[(0, 100, 14), (1, 0, 26)]);
    let plan = sliced(&tensor, vec![None, Some(2..6)], 0).unwrap();
    assert_eq!(
        runs(&plan),
        [
            (102, 4, 1, 4, 0),
            (112, 2, 1, 2, 4),
            (0, 2, 1, 2, 6),
            (8, 4, 2, 10, 8)
        ]
    );
    // Extents that continue each other are one.
    let same = meta("w", Dtype::U8, &[4, 10], &[(0, 100, 14), (0, 114, 26)]);
    let plan = sliced(&same, vec![None, Some(2..6)], 0).unwrap();
    assert_eq!(runs(&plan), [(102, 4, 4, 10, 0)]);
}

#[test]
fn tied_tensors_share_a_span_and_their_bytes_count_once() {
    let tensors = [
        meta("embed", Dtype::U8, &[10, 10], &[(0, 0, 100)]),
        meta("head", Dtype::U8, &[10, 10], &[(0, 0, 100)]),
    ];
    let half = Slice::Ranges(vec![None, Some(0..5)]);
    let selection = Selection::all().with_slice("head", half).unwrap();
    let plan = ReadPlan::from_parts(&tensors, sources(&[100]), &selection, &options(0)).unwrap();
    check_invariants(&plan);
    assert_eq!(kinds(&plan), [(0, 100, SpanKind::Dense)]);
    let figures = plan.figures();
    assert_eq!((figures.needed_bytes, figures.span_bytes), (100, 100));
    assert_eq!(figures.result_bytes, 150);
}

#[test]
fn elements_smaller_than_a_byte_are_cut_on_whole_bytes_or_refused() {
    let tensor = meta("experts.w", Dtype::F4, &[3, 6], &[(0, 0, 9)]);
    let rows = sliced(&tensor, vec![Some(1..2), None], 0).unwrap();
    assert_eq!(runs(&rows), [(3, 3, 1, 3, 0)]);
    let columns = sliced(&tensor, vec![None, Some(2..4)], 0).unwrap();
    assert_eq!(runs(&columns), [(1, 1, 3, 3, 0)]);
    for ranges in [vec![None, Some(1..3)], vec![None, Some(0..1)]] {
        let error = sliced(&tensor, ranges, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.tensor_name(), Some("experts.w"));
        assert!(error.to_string().contains("F4 has 4 bits"), "{error}");
    }
}

#[test]
fn tensors_that_do_not_fit_their_sources_are_refused() {
    let mut strided = meta("w", Dtype::U8, &[2, 2], &[(0, 0, 4)]);
    strided.strides = Some([u64::MAX, 1].into());
    let mut few_strides = strided.clone();
    few_strides.strides = Some([1].into());
    for (tensor, kind) in [
        (
            meta("w", Dtype::U8, &[5], &[(0, 6, 5)]),
            ErrorKind::Truncated,
        ),
        (
            meta("w", Dtype::U8, &[5], &[(0, u64::MAX, 5)]),
            ErrorKind::Truncated,
        ),
        (
            meta("w", Dtype::U8, &[5], &[(1, 0, 5)]),
            ErrorKind::InvalidArgument,
        ),
        (
            meta("w", Dtype::U8, &[5], &[(0, 0, 4)]),
            ErrorKind::ShapeMismatch,
        ),
        (
            meta("w", Dtype::F4, &[5], &[(0, 0, 3)]),
            ErrorKind::Overflow,
        ),
        (strided, ErrorKind::Overflow),
        (few_strides, ErrorKind::ShapeMismatch),
    ] {
        let plan = ReadPlan::from_parts(&[tensor], sources(&[10]), &Selection::all(), &options(0));
        let error = plan.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.tensor_name(), Some("w"));
    }
}

#[test]
fn an_explanation_is_text_and_json() {
    let tensor = meta("w", Dtype::F32, &[1024, 1024], &[(0, 0, 4 << 20)]);
    let plan = sliced(&tensor, vec![None, Some(0..512)], 4096).unwrap();
    let explanation = plan.explain();
    let text = explanation.to_string();
    for words in [
        "1 tensor in 1 file of 2 MiB",
        "1 range over 4 MiB for 2 MiB needed",
        "part-0",
    ] {
        assert!(text.contains(words), "{words:?} in\n{text}");
    }
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["figures"]["needed_bytes"], 2 << 20);
    assert_eq!(json["files"][0]["path"], "part-0");
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["spans"][0]["kind"], "dense");
    assert_eq!(json["tensors"][0]["dtype"], "F32");
}

#[test]
fn a_checkpoint_of_very_many_tensors_plans_in_no_time() {
    let tensors: Vec<TensorMeta> = (0..46_000)
        .map(|index| {
            let name = format!("model.layers.{index}.experts.w");
            meta(
                &name,
                Dtype::BF16,
                &[64, 64],
                &[(index as u32 % 64, index * 8192, 8192)],
            )
        })
        .collect();
    let slice = Slice::Shard {
        dim: 1,
        rank: 1,
        world: 4,
        split: Split::Even,
    };
    let mut selection = Selection::names(tensors.iter().map(|meta| &meta.name));
    for meta in &tensors {
        selection = selection.with_slice(&meta.name, slice.clone()).unwrap();
    }
    let lens = [46_000 * 8192; 64];
    // Quadratic work in any stage would be billions of steps here.
    let plan = ReadPlan::from_parts(&tensors, sources(&lens), &selection, &options(0)).unwrap();
    assert_eq!((plan.pieces.len(), plan.spans.len()), (46_000, 46_000));
    assert_eq!(plan.figures().needed_bytes, 46_000 * 2048);
}

#[test]
fn damaged_cases_never_panic() {
    let mut state = 0x853c_49e6_748f_ea9b_u64;
    for _ in 0..5_000 {
        let bytes: Vec<u8> = (0..160)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            })
            .collect();
        cases::plan(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn plans_deliver_what_element_by_element_slicing_does(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        cases::plan_and_compare(&bytes);
    }
}
