//! `cargo run --release --example all_reduce_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::AllReduce)
}
