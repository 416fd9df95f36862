//! `cargo run --release --example reduce_scatter_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::ReduceScatter)
}
