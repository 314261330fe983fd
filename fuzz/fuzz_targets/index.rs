//! A `model.safetensors.index.json` of any bytes is refused, or names files of its own folder only.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensora::fuzz_bodies::index(bytes));
