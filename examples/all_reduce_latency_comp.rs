//! `cargo run --release --example all_reduce_latency_comp -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::AllReduceLatencyComp)
}
