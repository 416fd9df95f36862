//! `cargo run --release --example p2p_matrix -- --help`

fn main() -> std::process::ExitCode {
    ccl_perf::main_with(ccl_perf::Program::P2pMatrix)
}
