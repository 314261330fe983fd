//! A SafeTensors file of any bytes is refused, or keeps the promises of a checkpoint.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensora::fuzz_bodies::header(bytes));
