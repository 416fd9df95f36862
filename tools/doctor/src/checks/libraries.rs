//! Native libraries, which are opened at run time and never linked: the checks report which
//! libraries are installed, and which features are lost because others are missing.

use std::collections::BTreeSet;

use super::super::finding::Finding;
use super::super::host::Host;
use super::super::library::{Asks, open};
use ccl_machine::devices::{self, Maker};

/// Usual directories of libraries.
const DIRECTORIES: [&str; 14] = [
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/lib64",
    "/opt/amazon/efa/lib64",
    "/opt/amazon/efa/lib",
    "/usr/local/lib64",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];
const PLUGIN: &str = "libnccl-net-ferroccl.so";
/// First NCCL version that can load `PLUGIN`: 2.20 introduced version 8 of the plugin interface.
const NCCL_MIN: u32 = 22_000;

struct Known {
    file: &'static str,
    asks: Asks,
    /// Formats the number that the library's version function returns.
    shows: fn(u32) -> String,
    needed: fn(&Host) -> Need,
    without: &'static str,
    install: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    No,
    Useful,
    Must,
}

const KNOWN: [Known; 5] = [
    Known {
        file: "libibverbs.so.1",
        asks: Asks::Opened,
        shows: |version| version.to_string(),
        needed: |host| if devices::rdma(host).is_empty() { Need::No } else { Need::Must },
        without: "RDMA devices (FERROCCL_TRANSPORT=verbs) cannot be used",
        install: "Debian: libibverbs1 and ibverbs-providers; others: rdma-core",
    },
    Known {
        file: "libcuda.so.1",
        asks: Asks::Writes(b"cuDriverGetVersion\0"),
        shows: |version| format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
        needed: |host| if has_nvidia(host) { Need::Must } else { Need::No },
        without: "no program here can use NVIDIA's GPUs, nor hand their memory to network devices",
        install: "it comes with NVIDIA's driver; containers: NVIDIA's container toolkit",
    },
    Known {
        file: "libnvidia-ml.so.1",
        asks: Asks::Opened,
        shows: |version| version.to_string(),
        needed: |host| if has_nvidia(host) { Need::Useful } else { Need::No },
        without: "neither NCCL nor `ferroccl topo` can see which GPUs have NVLink",
        install: "it comes with NVIDIA's driver; containers: NVIDIA's container toolkit, with \
                  NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    },
    Known {
        file: "libnccl.so.2",
        asks: Asks::Writes(b"ncclGetVersion\0"),
        shows: |version| match version {
            0..10_000 => format!("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100),
            _ => format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100),
        },
        // ferroccl itself does not use NCCL, and PyTorch has a copy of its own.
        needed: |_| Need::No,
        without: "",
        install: "",
    },
    Known {
        file: "libfabric.so.1",
        asks: Asks::File,
        shows: |version| version.to_string(),
        needed: |host| if has_efa(host) { Need::Useful } else { Need::No },
        without: "EFA (FERROCCL_TRANSPORT=ofi) cannot be used",
        install: "Amazon's EFA installer, or Debian: libfabric1",
    },
];

fn has_nvidia(host: &Host) -> bool {
    // A GPU that belongs to a virtual machine or another driver needs no NVIDIA library.
    let is_its_own = |gpu: &devices::Device| {
        let driver = host.real(&format!("{}/driver", gpu.path));
        driver.is_none_or(|driver| driver.ends_with("/nvidia"))
    };
    let gpus = devices::gpus(host);
    gpus.iter().any(|(gpu, maker)| *maker == Maker::Nvidia && is_its_own(gpu))
}

fn has_efa(host: &Host) -> bool {
    devices::rdma(host).iter().any(|device| {
        let driver = host.real(&format!("{}/driver", device.path));
        driver.is_some_and(|driver| driver.ends_with("/efa"))
    })
}

/// Reports the installed libraries and their versions.
pub(super) fn found(host: &Host) -> Vec<Finding> {
    let mut found: Vec<Finding> = KNOWN.iter().map(|known| one(host, known)).collect();
    found.extend(several_nccl(host));
    found.extend(several_libfabric(host));
    found
}

fn one(host: &Host, known: &Known) -> Finding {
    let Known { file, asks, shows, needed, without, install } = known;
    let files = versions(host, file);
    let on_disk = files.first().filter(|version| !version.is_empty());
    let told = match (host.is_live(), asks) {
        (true, Asks::Opened | Asks::Writes(_)) => open(file, *asks),
        _ if files.is_empty() => Err("not in LD_LIBRARY_PATH or a usual directory".to_owned()),
        _ => Ok(None),
    };
    let problem = match told {
        Ok(version) => {
            let version = version.map(|version| (version, shows(version)));
            let shown = version.as_ref().map(|(_, shown)| shown).or(on_disk);
            let shown = shown.map_or("installed; its version is unknown", String::as_str);
            let too_old = version.as_ref().is_some_and(|(version, _)| *version < NCCL_MIN);
            if *file == "libnccl.so.2" && too_old {
                let evidence = format!("NCCL {shown} cannot load {PLUGIN}");
                return Finding::warning(*file, evidence, "use NCCL 2.20 or newer");
            }
            return Finding::ok(*file, shown);
        }
        Err(problem) => problem,
    };
    match needed(host) {
        Need::No => Finding::ok(*file, "not found, and nothing here needs it"),
        Need::Useful => Finding::advice(*file, format!("{problem}: {without}"), *install),
        Need::Must => Finding::fault(*file, format!("{problem}: {without}"), *install),
    }
}

/// Returns the versions of all files of this name: first those in `LD_LIBRARY_PATH`, then those in
/// `DIRECTORIES`. A version is the part after `.so.` of a file's real name (all links followed); it
/// is empty if there is no such part.
pub(super) fn versions(host: &Host, file: &str) -> Vec<String> {
    let asked = host.job.library_path.split(':').filter(|path| path.starts_with('/'));
    let mut seen = Vec::new();
    let mut versions = Vec::new();
    for directory in asked.chain(DIRECTORIES) {
        let Some(real) = host.real(&format!("{directory}/{file}")) else { continue };
        let version = real.rsplit_once(".so").map_or("", |(_, rest)| rest.trim_start_matches('.'));
        if !seen.contains(&real) {
            versions.push(version.to_owned());
            seen.push(real);
        }
    }
    versions
}

/// Returns evidence that lists the versions of a library, if there are several.
fn several(host: &Host, file: &str) -> Option<String> {
    let versions = versions(host, file);
    let distinct: BTreeSet<&String> = versions.iter().collect();
    (distinct.len() > 1)
        .then(|| format!("several versions: {}; the first is loaded", versions.join(", ")))
}

/// Returns a warning if there are several versions of NCCL: ranks that load different ones hang or
/// crash.
fn several_nccl(host: &Host) -> Option<Finding> {
    let remedy = "keep one version, the same on all hosts; NCCL_DEBUG=VERSION shows which version \
                  a program has loaded";
    Some(Finding::warning("libnccl.so.2", several(host, "libnccl.so.2")?, remedy))
}

/// Returns advice if there are several versions of libfabric: their providers and the providers'
/// settings differ, so two ranks that load different versions may refuse each other.
fn several_libfabric(host: &Host) -> Option<Finding> {
    let remedy = "set LD_LIBRARY_PATH so that all ranks load the same version; `ferroccl doctor \
                  --ofi` shows the providers of the loaded version";
    Some(Finding::advice("libfabric.so.1", several(host, "libfabric.so.1")?, remedy))
}

/// Checks whether NCCL would find ferroccl's plugin.
pub(super) fn plugin(host: &Host) -> Vec<Finding> {
    let asked = host.job.library_path.split(':').filter(|path| path.starts_with('/'));
    let mut places = asked.chain(DIRECTORIES).map(|directory| format!("{directory}/{PLUGIN}"));
    let place = places.find(|place| host.has(place));
    let wanted = host.job.net_plugin.as_str();
    let ours = matches!(wanted, "ferroccl" | PLUGIN);
    vec![match place {
        Some(place) if ours => Finding::ok("", format!("NCCL_NET_PLUGIN selects {place}")),
        Some(place) => Finding::advice(
            "",
            format!("{place} exists, but NCCL_NET_PLUGIN is {wanted:?}: NCCL does not load it"),
            "`export NCCL_NET_PLUGIN=ferroccl` to have NCCL use it",
        ),
        None if ours => Finding::fault(
            "",
            format!("NCCL_NET_PLUGIN={wanted}, but {PLUGIN} is in no directory that is searched"),
            "`export LD_LIBRARY_PATH=$(ferroccl-nccl-net):$LD_LIBRARY_PATH`",
        ),
        None => Finding::ok("", format!("{PLUGIN} is not installed, and not selected")),
    }]
}
