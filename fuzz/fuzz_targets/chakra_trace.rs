#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ferroccl::fuzzing::chakra_trace(data));
