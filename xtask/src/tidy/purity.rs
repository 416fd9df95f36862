//! Rules for access to the system: code reads the environment only through configuration, and layer
//! 0 does not use the operating system.

use super::Finding;
use super::source::Source;

/// Prefixes of the paths of files that may read environment variables, such as the configuration
/// and the code that reads the variables of launchers.
const ENVIRONMENT_READERS: [&str; 7] = [
    "ccl-core/src/config",
    "src/launch",
    "plugins/nccl-net/src/config.rs",
    "testing/reference-plugin/src/config.rs",
    "testing/harness",
    "testing/remote-device",
    "xtask/",
];

const ENVIRONMENT_READS: [&str; 4] = ["env::var", "env::var_os", "env::vars", "env::vars_os"];

/// Source folders of layer 0 and of the state machines of joining, to which the same rules apply.
const CORE: [&str; 3] = ["ccl-core/src/", "ccl-core/memory/src/", "ccl-core/bootstrap/src/"];

/// Rust paths that layer 0 must not name, each with the reason. An entry covers all paths below it.
const FORBIDDEN_IN_CORE: [(&str, &str); 11] = [
    ("std::env", "the caller passes the configuration"),
    ("std::fs", "this layer uses no operating system"),
    ("std::net", "this layer uses no sockets; the types of addresses are in `core::net`"),
    ("std::os", "this layer uses no operating system"),
    ("std::process", "this layer uses no operating system"),
    ("std::thread", "the caller of the core decides about threads"),
    ("std::time::Instant", "the core reads no clock; use `crate::time::Instant`"),
    ("std::time::SystemTime", "the core reads no clock; the caller passes the time"),
    ("std::collections::HashMap", "iteration order differs between runs; use `BTreeMap`"),
    ("std::collections::HashSet", "iteration order differs between runs; use `BTreeSet`"),
    ("std::collections::hash_map", "iteration order differs between runs; use `BTreeMap`"),
];

/// Modules that layer 0 must not import whole: such an import can hide forbidden items.
const NAME_ITEMS_OF: [&str; 3] = ["std::time", "std::collections", "std"];

/// Finds reads of environment variables outside the configuration.
pub(super) fn environment(path: &str, source: &Source) -> Vec<Finding> {
    let allowed = ENVIRONMENT_READERS.iter().any(|reader| path.starts_with(reader))
        || path == "build.rs"
        || path.ends_with("/build.rs")
        || is_test_file(path);
    if allowed {
        return Vec::new();
    }
    let reads = source.paths.iter().filter(|named| {
        ENVIRONMENT_READS.iter().any(|read| ends_with_path(&named.path, read))
            && !source.is_test(named.line)
    });
    reads
        .map(|named| {
            let message = format!(
                "`{}` reads the environment: declare a tunable in ccl-core/src/config instead",
                named.path
            );
            Finding::new(path, named.line, message)
        })
        .collect()
}

/// Finds uses of clock, thread, file, network, environment or unordered maps in layer 0.
pub(super) fn core(path: &str, source: &Source) -> Vec<Finding> {
    if !CORE.iter().any(|core| path.starts_with(core)) || is_test_file(path) {
        return Vec::new();
    }
    let product = source.paths.iter().filter(|named| !source.is_test(named.line));
    product
        .filter_map(|named| {
            forbidden_in_core(&named.path).map(|reason| {
                let message = format!("`{}` in layer 0: {reason}", named.path);
                Finding::new(path, named.line, message)
            })
        })
        .collect()
}

fn forbidden_in_core(path: &str) -> Option<&'static str> {
    let whole = path.strip_suffix("::*").unwrap_or(path);
    if NAME_ITEMS_OF.contains(&whole) {
        return Some("name each item that you use, so that a reader and this check see it");
    }
    let entry = FORBIDDEN_IN_CORE.iter().find(|(forbidden, _)| {
        path.strip_prefix(forbidden).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    });
    entry.map(|(_, reason)| *reason)
}

fn is_test_file(path: &str) -> bool {
    path.starts_with("fuzz/") || path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

fn ends_with_path(path: &str, suffix: &str) -> bool {
    path.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with("::"))
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn environment_of(path: &str, text: &str) -> usize {
        environment(path, &source::read(text).unwrap()).len()
    }

    fn core_of(text: &str) -> usize {
        core("ccl-core/src/x.rs", &source::read(text).unwrap()).len()
    }

    #[test]
    fn reading_the_environment_is_seen_in_every_spelling() {
        for text in [
            "fn f() { std::env::var(\"A\"); }",
            "fn f() { env::var_os(\"A\"); }",
            "use std::{env::{vars}};",
            "fn f() { g!(std::env::vars_os()); }",
        ] {
            assert_eq!(environment_of("transports/shm/src/lib.rs", text), 1, "{text}");
        }
    }

    #[test]
    fn only_tests_and_build_scripts_and_listed_files_may_read_variables() {
        let read = "fn f() { std::env::var(\"A\"); }";
        assert_eq!(environment_of("src/lib.rs", "fn f() { std::env::args(); my_env::var(); }"), 0);
        assert_eq!(
            environment_of("src/lib.rs", "#[cfg(test)] mod t { fn f() { env::var(); } }"),
            0
        );
        for path in ["ccl-core/src/config.rs", "src/launch/slurm.rs"] {
            assert_eq!(environment_of(path, read), 0, "{path}");
        }
        for path in
            ["build.rs", "tests/main.rs", "src/a/tests.rs", "xtask/src/main.rs", "fuzz/replay.rs"]
        {
            assert_eq!(environment_of(path, read), 0, "{path}");
        }
        for path in ["examples/perf.rs", "src/launcher.c.rs", "src/lib.rs", "kernels/cpu/src/a.rs"]
        {
            let expected = usize::from(!path.starts_with("src/launch"));
            assert_eq!(environment_of(path, read), expected, "{path}");
        }
    }

    #[test]
    fn the_core_must_not_use_the_system_nor_clocks_nor_unordered_maps() {
        for text in [
            "use std::time::{Duration, Instant};",
            "fn f() { let t = std::time::SystemTime::now(); }",
            "fn f() { std::thread::spawn(|| ()); }",
            "use std::fs;",
            "use std::net::TcpStream;",
            "use std::{env};",
            "use std::collections::HashMap;",
            "struct S { a: std::collections::hash_map::Entry<u8, u8> }",
            "use std::time;",
            "use std::collections::*;",
        ] {
            assert_eq!(core_of(text), 1, "{text}");
        }
    }

    #[test]
    fn the_core_may_use_durations_and_ordered_maps() {
        let text = "use std::time::Duration; use std::collections::{BTreeMap, VecDeque};
            use crate::time::Instant; use std::fmt;
            #[cfg(test)] mod tests { use std::thread; }";
        assert_eq!(core_of(text), 0);
        let source = source::read("use std::fs;").unwrap();
        assert!(core("transports/shm/src/lib.rs", &source).is_empty());
        assert!(core("ccl-core/tests/verifier.rs", &source).is_empty());
        assert_eq!(core("ccl-core/memory/src/lib.rs", &source).len(), 1);
    }
}
