//! Headers and indexes of as many tensors as the largest mixture-of-experts models have.

use std::fmt::Write;

/// Tensors of a large mixture-of-experts model.
pub const TENSORS: usize = 46_000;

/// Bytes of each tensor: a 4 x 4 matrix of BF16.
pub const TENSOR_BYTES: usize = 32;

/// The name of tensor `i`.
pub fn name(i: usize) -> String {
    let (layer, expert) = (i / 720, i % 720);
    format!("model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight_scale_inv")
}

/// Where tensor `i` begins, counted from the first one, and where it ends.
pub fn range(i: usize) -> (usize, usize) {
    (i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES)
}

/// The beginning of a SafeTensors file: the length, and the JSON.
pub fn header() -> Vec<u8> {
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    for i in 0..TENSORS {
        let (name, (begin, end)) = (name(i), range(i));
        write!(
            json,
            ",\"{name}\":{{\"dtype\":\"BF16\",\"shape\":[4,4],\"data_offsets\":[{begin},{end}]}}"
        )
        .expect("writing to a string");
    }
    json.push('}');
    while !json.len().is_multiple_of(8) {
        json.push(' ');
    }
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes
}

/// Length of the whole file that begins with `header`.
pub fn file_len(header: &[u8]) -> u64 {
    (header.len() + TENSORS * TENSOR_BYTES) as u64
}
