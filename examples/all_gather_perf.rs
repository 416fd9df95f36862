//! `cargo run --release --example all_gather_perf -- --help`

fn main() -> std::process::ExitCode {
    ccl_perf::main_with(ccl_perf::Program::AllGather)
}
