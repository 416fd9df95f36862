//! `cargo run --release --example all_reduce_latency_comp -- --help`

fn main() -> std::process::ExitCode {
    ccl_perf::main_with(ccl_perf::Program::AllReduceLatencyComp)
}
