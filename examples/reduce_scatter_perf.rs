//! `cargo run --release --example reduce_scatter_perf -- --help`

fn main() -> std::process::ExitCode {
    ccl_perf::main_with(ccl_perf::Program::ReduceScatter)
}
