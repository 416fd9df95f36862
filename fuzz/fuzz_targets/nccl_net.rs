#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nccl_net_ferroccl::fuzzing::nccl_net(data));
