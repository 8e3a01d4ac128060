#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| adjutant_fuzz::front_matter(bytes));
