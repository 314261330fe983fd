//! A selection of any tensors is refused, or its plan reads the bytes that slicing by hand gives.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensora::fuzz_bodies::plan(bytes));
