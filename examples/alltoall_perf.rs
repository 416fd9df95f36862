//! `cargo run --release --example alltoall_perf -- --help`

fn main() -> std::process::ExitCode {
    ccl_perf::main_with(ccl_perf::Program::AllToAll)
}
