//! `cargo run --release --example all_gather_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::AllGather)
}
