//! The layering: a crate depends only on lower layers, and transports never on each other.

use super::Finding;
use crate::workspace::{Crate, Purpose};

/// The layers, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    /// L0: the one door to unsafe memory.
    Memory,
    /// L0: the engine without an operating system.
    Core,
    /// L1: what transports stand on: bindings, and connections that agree on others.
    Ground,
    /// L1: transports and kernels, side by side.
    Rooms,
    /// L2: the root package.
    Facade,
    /// L3: what is built from the whole library.
    Shells,
    /// The chores.
    Tools,
}

/// The layer of the crate in that directory; `None` if nobody has decided yet.
fn layer(dir: &str) -> Option<Layer> {
    match dir {
        "ccl-core/memory" => Some(Layer::Memory),
        "ccl-core" => Some(Layer::Core),
        "transports/wire" | "transports/verbs/sys" | "transports/nccl-net/abi" => {
            Some(Layer::Ground)
        }
        "" => Some(Layer::Facade),
        "transports/nccl-net" => Some(Layer::Shells),
        // The simulator of fabrics is a room like these: the command shows it.
        "sim" => Some(Layer::Rooms),
        "xtask" => Some(Layer::Tools),
        _ if dir.starts_with("transports/") || dir.starts_with("kernels/") => Some(Layer::Rooms),
        _ => None,
    }
}

/// Whether the tests of a transport may use that crate of their own layer.
fn serves_tests(dir: &str) -> bool {
    let helps = [
        "transports/conformance",
        "transports/sim",
        "transports/verbs/soft",
        "transports/nccl-net/reference",
    ];
    helps.contains(&dir) || dir.starts_with("kernels/")
}

/// Wrong dependencies among the crates of the workspace.
pub(super) fn edges(crates: &[Crate]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for from in crates {
        let name = if from.dir.is_empty() { "Cargo.toml" } else { &from.dir };
        if layer(&from.dir).is_none() {
            let message = "belongs to no layer: give it one in xtask/src/tidy/layers.rs";
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
        // A crate without a layer is reported by itself.
        return true;
    };
    // Bindings live inside the transport that they serve, and serve nobody else.
    if let Some(transport) = to.strip_suffix("/sys") {
        return from.starts_with(transport);
    }
    let test_help = purpose == Purpose::Dev && from.starts_with("transports/") && serves_tests(to);
    // The plugin for NCCL is tested by a program of the root package.
    let tests_plugin = purpose == Purpose::Dev && from.is_empty() && to == "transports/nccl-net";
    lower < upper || (test_help && upper == lower) || tests_plugin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(from: &str, to: &str, purpose: Purpose) -> bool {
        let found = Crate {
            name: "from".to_owned(),
            dir: from.to_owned(),
            dependencies: vec![(to.to_owned(), purpose)],
            tests: Vec::new(),
        };
        !edges(&[found]).is_empty()
    }

    #[test]
    fn dependencies_point_down() {
        for (from, to) in [
            ("ccl-core", "ccl-core/memory"),
            ("transports/shm", "ccl-core"),
            ("kernels/cpu", "ccl-core/memory"),
            ("", "transports/shm"),
            ("sim", "ccl-core"),
            ("", "sim"),
            ("transports/nccl-net", "transports/shm"),
            ("transports/verbs", "transports/verbs/sys"),
            ("transports/verbs/soft", "transports/verbs/sys"),
            ("transports/verbs", "transports/wire"),
        ] {
            assert!(!wrong(from, to, Purpose::Build), "{from} -> {to}");
        }
        for (from, to) in [
            ("ccl-core/memory", "ccl-core"),
            ("ccl-core", "transports/shm"),
            ("transports/shm", "transports/sim"),
            ("transports/shm", "kernels/cpu"),
            ("kernels/cpu", "transports/conformance"),
            ("transports/ofi", "transports/verbs/sys"),
            ("", "transports/verbs/sys"),
            ("transports/wire", "transports/tcp"),
            ("transports/shm", ""),
            ("sim", ""),
            ("sim", "transports/shm"),
            ("", "xtask"),
        ] {
            assert!(wrong(from, to, Purpose::Build), "{from} -> {to}");
        }
    }

    #[test]
    fn tests_of_a_transport_may_use_what_is_there_for_tests() {
        for to in ["transports/conformance", "transports/sim", "kernels/cpu"] {
            assert!(!wrong("transports/shm", to, Purpose::Dev), "{to}");
        }
        for (from, to) in
            [("transports/shm", "transports/tcp"), ("transports/shm", ""), ("ccl-core", "sim")]
        {
            assert!(wrong(from, to, Purpose::Dev), "{from} -> {to}");
        }
    }

    #[test]
    fn a_crate_without_a_layer_is_reported() {
        assert!(wrong("somewhere", "ccl-core", Purpose::Build));
    }
}
