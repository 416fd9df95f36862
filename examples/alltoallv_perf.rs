//! `cargo run --release --example alltoallv_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::AllToAllV)
}
