//! `cargo run --release --example broadcast_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::Broadcast)
}
