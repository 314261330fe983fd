//! A `tensor_index.json` of any bytes is refused, or its tensors lie within the partitions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensora::fuzz_bodies::serverlessllm_index(bytes));
