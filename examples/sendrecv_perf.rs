//! `cargo run --release --example sendrecv_perf -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::SendRecv)
}
