//! `cargo run --release --example training_buckets -- --help`

fn main() -> std::process::ExitCode {
    ccl_perf::main_with(ccl_perf::Program::TrainingBuckets)
}
