//! `cargo run --release --example p2p_matrix -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::P2pMatrix)
}
