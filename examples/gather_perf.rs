//! `cargo run --release --example gather_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::Gather)
}
