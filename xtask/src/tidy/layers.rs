//! Rule for layers: a crate depends only on lower layers, and transports never on each other.

use super::Finding;
use crate::workspace::{Crate, Purpose};

/// Layers of the crates, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    /// L0: safe access to raw and mapped memory.
    Memory,
    /// L0: the engine without an operating system.
    Core,
    /// L1: the foundation of the transports, of `transports/links` and of the library: kernels,
    /// bindings, authenticated connections, the clock, and the state machines of joining.
    Foundation,
    /// L1: the transports and `transports/links`, none of which depends on another.
    Transports,
    /// L2: the library.
    Library,
    /// L3: plugins, which use the whole library.
    Plugins,
    /// L3: tools, which may use each other.
    Tools,
    /// Crates that only tests depend on.
    Testing,
    /// The crate `xtask`.
    Xtask,
}

/// Returns the layer of the crate in this directory; `None` if it has not been decided.
fn layer(dir: &str) -> Option<Layer> {
    match dir {
        "ccl-core/memory" => Some(Layer::Memory),
        "ccl-core" => Some(Layer::Core),
        "ccl-core/clock"
        | "ccl-core/bootstrap"
        | "transports/socket"
        | "transports/verbs/sys"
        | "transports/ofi/sys"
        | "plugins/nccl-net/abi" => Some(Layer::Foundation),
        "" => Some(Layer::Library),
        "tests" => Some(Layer::Testing),
        "xtask" => Some(Layer::Xtask),
        _ => match dir.split_once('/')?.0 {
            "transports" => Some(Layer::Transports),
            "kernels" => Some(Layer::Foundation),
            "plugins" => Some(Layer::Plugins),
            "tools" => Some(Layer::Tools),
            "testing" => Some(Layer::Testing),
            _ => None,
        },
    }
}

/// Third-party crates for parsing flags, reading files and drawing. The library and the plugins
/// must not use these crates, so that users of the library need not build them.
const FOR_TOOLS: [&str; 11] = [
    "clap",
    "indicatif",
    "libm",
    "nvml-wrapper",
    "plotters",
    "prost",
    "roxmltree",
    "serde_json",
    "syn",
    "toml",
    "zip",
];

/// Finds dependencies of the library and the plugins on crates in [`FOR_TOOLS`].
pub(super) fn others(crates: &[Crate]) -> Vec<Finding> {
    let library = crates.iter().filter(|from| layer(&from.dir) <= Some(Layer::Plugins));
    let wrong = library.flat_map(|from| {
        let others = from.others.iter().filter(|other| FOR_TOOLS.contains(&other.as_str()));
        others.map(move |other| {
            let name = if from.dir.is_empty() { "Cargo.toml" } else { &from.dir };
            let message = format!(
                "`{}` depends on `{other}`, which only tools may use: move the code that uses it \
                 to `tools/`",
                from.name
            );
            Finding::new(name, 0, message)
        })
    });
    wrong.collect()
}

/// Finds forbidden dependencies among the crates of the workspace.
pub(super) fn edges(crates: &[Crate]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for from in crates {
        let name = if from.dir.is_empty() { "Cargo.toml" } else { &from.dir };
        if layer(&from.dir).is_none() {
            let message = "the crate has no layer: add it to a layer in xtask/src/tidy/layers.rs";
            findings.push(Finding::new(name, 0, message));
        }
        let wrong =
            from.dependencies.iter().filter(|(to, purpose)| !allowed(&from.dir, to, *purpose));
        findings.extend(wrong.map(|(to, purpose)| {
            let kind = if *purpose == Purpose::Dev { "dev-depends" } else { "depends" };
            let message = format!(
                "`{}` {kind} on `{to}`: a crate depends only on lower layers, and transports \
                 never on each other",
                from.name
            );
            Finding::new(name, 0, message)
        }));
    }
    findings
}

fn allowed(from: &str, to: &str, purpose: Purpose) -> bool {
    let (Some(upper), Some(lower)) = (layer(from), layer(to)) else {
        // `edges` reports a crate without a layer separately.
        return true;
    };
    // Two kinds of crates may use bindings: the transport whose directory has them, and crates of
    // the layer `Testing`.
    if let Some(transport) = to.strip_suffix("/sys") {
        return from.starts_with(transport) || upper == Layer::Testing;
    }
    let tests = purpose == Purpose::Dev;
    match (upper, lower) {
        (_, Layer::Testing) => tests || upper == Layer::Testing,
        (Layer::Tools, Layer::Tools) => to != "tools/cli",
        // The library's examples use the tools.
        (Layer::Library, Layer::Tools) => tests,
        // Transports move bytes and do not reduce them: only links and tests use kernels.
        (Layer::Transports, Layer::Foundation) if to.starts_with("kernels/") => {
            tests || from == "transports/links"
        }
        (Layer::Transports, Layer::Foundation) if to == "ccl-core/bootstrap" => false,
        _ => lower < upper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(from: &str, to: &str, purpose: Purpose) -> bool {
        let found = Crate {
            name: "from".to_owned(),
            dir: from.to_owned(),
            dependencies: vec![(to.to_owned(), purpose)],
            others: Vec::new(),
            tests: Vec::new(),
        };
        !edges(&[found]).is_empty()
    }

    #[test]
    fn the_library_depends_on_no_crates_for_tools() {
        let found = |dir: &str, other: &str| {
            let (name, others) = ("from".to_owned(), vec![other.to_owned()]);
            let (dependencies, tests) = (Vec::new(), Vec::new());
            others_of(Crate { name, dir: dir.to_owned(), dependencies, others, tests })
        };
        for dir in ["", "ccl-core", "transports/tcp", "plugins/nccl-net"] {
            assert_eq!((found(dir, "clap"), found(dir, "serde")), (1, 0), "{dir}");
        }
        assert_eq!(found("tools/cli", "clap"), 0);
    }

    fn others_of(from: Crate) -> usize {
        others(&[from]).len()
    }

    #[test]
    fn dependencies_point_down() {
        for (from, to) in [
            ("ccl-core", "ccl-core/memory"),
            ("transports/shm", "ccl-core"),
            ("kernels/cpu", "ccl-core/memory"),
            ("transports/links", "kernels/cpu"),
            ("", "transports/shm"),
            ("", "ccl-core/bootstrap"),
            ("ccl-core/bootstrap", "ccl-core"),
            ("tools/sim", "ccl-core"),
            ("tools/perf", ""),
            ("tools/perf", "tools/model"),
            ("testing/harness", ""),
            ("plugins/nccl-net", "transports/shm"),
            ("transports/verbs", "transports/verbs/sys"),
            ("testing/soft-verbs", "transports/verbs/sys"),
            ("transports/verbs", "transports/socket"),
        ] {
            assert!(!wrong(from, to, Purpose::Build), "{from} -> {to}");
        }
        for (from, to) in [
            ("ccl-core/memory", "ccl-core"),
            ("ccl-core", "transports/shm"),
            ("ccl-core", "ccl-core/bootstrap"),
            ("transports/tcp", "ccl-core/bootstrap"),
            ("transports/shm", "testing/sim-transport"),
            ("transports/shm", "kernels/cpu"),
            ("kernels/cpu", "testing/conformance"),
            ("transports/ofi", "transports/verbs/sys"),
            ("", "transports/verbs/sys"),
            ("transports/socket", "transports/tcp"),
            ("transports/shm", ""),
            ("", "tools/sim"),
            ("", "plugins/nccl-net"),
            ("tools/sim", "tools/cli"),
            ("tools/sim", "testing/harness"),
            ("", "xtask"),
        ] {
            assert!(wrong(from, to, Purpose::Build), "{from} -> {to}");
        }
    }

    #[test]
    fn dev_dependencies_may_point_to_testing_crates() {
        for to in ["testing/conformance", "testing/sim-transport", "kernels/cpu"] {
            assert!(!wrong("transports/shm", to, Purpose::Dev), "{to}");
        }
        assert!(!wrong("", "tools/perf", Purpose::Dev));
        for to in ["testing/harness", "tools/perf", "plugins/nccl-net"] {
            assert!(!wrong("tests", to, Purpose::Dev), "{to}");
        }
        for (from, to) in [
            ("transports/shm", "transports/tcp"),
            ("transports/shm", ""),
            ("ccl-core", "tools/sim"),
            ("", "plugins/nccl-net"),
        ] {
            assert!(wrong(from, to, Purpose::Dev), "{from} -> {to}");
        }
    }

    #[test]
    fn a_crate_without_a_layer_is_reported() {
        assert!(wrong("somewhere", "ccl-core", Purpose::Build));
    }
}
