#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ccl_transport_tcp::fuzzing::tcp_intent(data));
