//! `cargo run --release --example alltoall_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::AllToAll)
}
