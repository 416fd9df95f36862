//! Has the plugin stay in memory when NCCL unloads it: a thread may still be about to end in it.
//! And has it bring the little of GCC's library along that panics need, so that it needs nothing
//! but the C library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!(
        "cargo::rustc-cdylib-link-arg=-Wl,--push-state,--whole-archive,-l:libgcc_eh.a,--pop-state"
    );
}
