//! Links the plugin so that it stays in memory when NCCL unloads it: a thread may still be about to
//! end in it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
