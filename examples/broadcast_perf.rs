//! `cargo run --release --example broadcast_perf -- --help`

fn main() -> std::process::ExitCode {
    ccl_perf::main_with(ccl_perf::Program::Broadcast)
}
