//! Slices with steps: which pieces they become.

use super::*;

/// Plans one tensor with (start, count, step) of each dimension.
fn stepped(
    meta: &TensorMeta,
    steps: &[Option<(u64, u64, u64)>],
    gap_limit: u64,
) -> Result<ReadPlan> {
    let steps = steps
        .iter()
        .map(|steps| steps.map(|(start, count, step)| Steps { start, count, step }));
    cut(meta, Slice::Steps(steps.collect()), gap_limit)
}

#[test]
fn steps_of_whole_rows_are_one_piece() {
    let tensor = meta("w", Dtype::F16, &[4, 6, 8], &[(0, 100, 384)]);
    // (start, count, step) of each dimension, and (offset, run, count, stride, dest) of the piece.
    let cases = [
        ([Some((1, 2, 2)), None, None], (196, 96, 2, 192, 0)),
        ([Some((3, 1, 9)), None, None], (388, 96, 1, 96, 0)),
        ([Some((0, 4, 1)), None, None], (100, 384, 1, 384, 0)),
        // Every second row of the middle, and all of the outer dimension go on in equal steps.
        ([None, Some((0, 3, 2)), None], (100, 16, 12, 32, 0)),
        ([None, None, Some((1, 4, 2))], (102, 2, 96, 4, 0)),
        ([None, Some((1, 2, 3)), None], (116, 16, 8, 48, 0)),
        // All that is taken of the inner ones is one row.
        (
            [Some((0, 2, 3)), Some((5, 1, 1)), None],
            (180, 16, 2, 288, 0),
        ),
        (
            [Some((1, 2, 1)), Some((0, 3, 2)), None],
            (196, 16, 6, 32, 0),
        ),
    ];
    for (steps, piece) in cases {
        let plan = stepped(&tensor, &steps, 0).unwrap();
        assert_eq!(runs(&plan), [piece], "{steps:?}");
        assert_eq!(plan.tensors[0].gather, None);
        check_figures(&plan);
    }
    let none = stepped(&tensor, &[None, Some((77, 0, 5)), None], 0).unwrap();
    assert_eq!(none.tensors[0].shape.as_slice(), [4, 0, 8]);
    assert!(none.pieces.is_empty());
}

#[test]
fn steps_within_rows_are_one_piece_for_each_row() {
    let tensor = meta("w", Dtype::U8, &[3, 7], &[(0, 10, 21)]);
    let plan = stepped(&tensor, &[None, Some((0, 4, 2))], 1).unwrap();
    assert_eq!(
        runs(&plan),
        [(10, 1, 4, 2, 0), (17, 1, 4, 2, 4), (24, 1, 4, 2, 8)]
    );
    assert_eq!(kinds(&plan), [(10, 21, SpanKind::Dense)]);
    let plan = stepped(&tensor, &[Some((0, 2, 2)), Some((1, 2, 4))], 3).unwrap();
    assert_eq!(runs(&plan), [(11, 1, 2, 4, 0), (25, 1, 2, 4, 2)]);
    assert_eq!(
        kinds(&plan),
        [(11, 5, SpanKind::Dense), (25, 5, SpanKind::Dense)]
    );

    // Never a piece for each element: short rows are read whole, long ones are a piece each.
    let short = meta("w", Dtype::U8, &[50_000, 5], &[(0, 0, 250_000)]);
    let plan = stepped(&short, &[None, Some((0, 3, 2))], 1).unwrap();
    assert_eq!(runs(&plan), [(0, 250_000, 1, 250_000, 0)]);
    assert_eq!(&*plan.tensors[0].gather.as_ref().unwrap().strides, [5, 2]);
    let long = meta("w", Dtype::F32, &[50_000, 2001], &[(0, 0, 400_200_000)]);
    let plan = stepped(&long, &[None, Some((0, 1001, 2))], 4).unwrap();
    assert_eq!(plan.pieces.len(), 50_000);
    assert_eq!(runs(&plan)[1], (8004, 4, 1001, 8, 4004));
    assert_eq!(plan.figures().ranges, 1);
    assert_eq!(plan.tensors[0].gather, None);
}

#[test]
fn steps_of_large_rows_are_read_row_by_row() {
    let tensor = meta("w", Dtype::U8, &[10, 100], &[(0, 0, 1000)]);
    for (gap_limit, kind) in [(200, SpanKind::Dense), (199, SpanKind::Rows)] {
        let plan = stepped(&tensor, &[Some((1, 3, 3)), None], gap_limit).unwrap();
        assert_eq!(runs(&plan), [(100, 100, 3, 300, 0)]);
        assert_eq!(kinds(&plan), [(100, 700, kind)]);
        assert_eq!(plan.figures().needed_bytes, 300);
    }
}

#[test]
fn steps_meet_bytes_extents_and_views() {
    let packed = meta("w", Dtype::F4, &[6, 6], &[(0, 0, 18)]);
    let rows = stepped(&packed, &[Some((1, 3, 2)), None], 0).unwrap();
    assert_eq!(runs(&rows), [(3, 3, 3, 6, 0)]);
    let error = stepped(&packed, &[None, Some((0, 2, 2))], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let text = error.to_string();
    assert!(
        text.contains("[0:6, 0:4:2]") && text.contains("4 bits"),
        "{text}"
    );

    // Rows of 10 bytes, of which every second one is wanted; the third is cut at its byte 4.
    let parts = meta("w", Dtype::U8, &[5, 10], &[(0, 100, 24), (1, 0, 26)]);
    let plan = stepped(&parts, &[Some((0, 3, 2)), None], 0).unwrap();
    assert_eq!(
        runs(&plan),
        [
            (100, 10, 1, 10, 0),
            (120, 4, 1, 4, 10),
            (0, 6, 1, 6, 14),
            (16, 10, 1, 10, 20)
        ]
    );

    // Columns of a transposed view are rows of what is stored.
    let mut view = meta("w", Dtype::F32, &[3, 5], &[(0, 0, 60)]);
    view.strides = Some([1, 3].into());
    let columns = stepped(&view, &[None, Some((0, 3, 2))], 0).unwrap();
    assert_eq!(runs(&columns), [(0, 12, 3, 24, 0)]);
    assert_eq!(
        &*columns.tensors[0].gather.as_ref().unwrap().strides,
        [1, 3]
    );
    let rows = stepped(&view, &[Some((0, 2, 2)), Some((1, 1, 1))], 0).unwrap();
    assert_eq!(runs(&rows), [(12, 4, 2, 8, 0)]);
    assert_eq!(rows.tensors[0].gather, None);
}
