//! `cargo run --release --example reduce_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::Reduce)
}
