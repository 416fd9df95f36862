//! Links the plugin so that it stays mapped when NCCL unloads it: a thread that is ending may still
//! run the plugin's code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
