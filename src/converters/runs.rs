//! Consecutive tensors to files.

/// The file of each tensor when `count` files of about the same size are wanted, each with a run of
/// tensors: the one in which the middle of the tensor falls when the bytes are cut evenly. No file is
/// empty: one that no middle falls into takes a tensor of its neighbours, and there are fewer files
/// where fewer tensors have bytes.
pub(super) fn even_runs(sizes: &[u64], count: usize) -> Vec<usize> {
    let total: u128 = sizes.iter().copied().map(u128::from).sum();
    let mut to_come = sizes.iter().filter(|&&size| size > 0).count();
    let count = count.min(to_come).max(1);
    let (mut file, mut before, mut is_first) = (0, 0_u128, true);
    let place = |&size: &u64| {
        if size > 0 {
            let size = u128::from(size);
            let middle = before * 2 + size;
            let even = (middle * count as u128 / (total * 2)) as usize;
            let next = if is_first { 0 } else { file + 1 };
            // Those that come have to fill the files that come.
            file = even
                .clamp(file, next)
                .max(count.saturating_sub(to_come))
                .min(count - 1);
            (before, is_first) = (before + size, false);
            to_come -= 1;
        }
        file
    };
    sizes.iter().map(place).collect()
}
