//! `cargo run --release --example training_buckets -- --help`

fn main() -> std::process::ExitCode {
    ferroccl::perf::main_with(ferroccl::perf::Program::TrainingBuckets)
}
