//! Links the plugin so that it stays mapped when NCCL unloads it: a thread may still be ending in
//! its code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
