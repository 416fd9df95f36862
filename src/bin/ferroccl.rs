//! The `ferroccl` command.

fn main() {}
