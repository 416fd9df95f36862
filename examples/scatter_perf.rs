//! `cargo run --release --example scatter_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::Scatter)
}
