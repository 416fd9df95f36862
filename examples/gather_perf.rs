//! `cargo run --release --example gather_perf -- --help`

fn main() -> std::process::ExitCode {
    ccl_perf::main_with(ccl_perf::Program::Gather)
}
