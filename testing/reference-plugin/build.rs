//! Keeps the library mapped after `dlclose`, since its threads and statics do not survive
//! unmapping.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
