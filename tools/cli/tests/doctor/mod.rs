//! `ferroccl doctor`, on imitated machines with one fault each, and on the machine of the test.

mod machine;
mod ofi;

use ccl_harness::stretched;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use ccl_doctor::CHECKS;
use machine::{Machine, configuration};
use serde_json::Value;

/// Runs `ferroccl` with these environment variables and no others.
fn ferroccl(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(ccl_harness::command::program());
    command.env_clear().envs(variables.iter().copied()).args(arguments).output().unwrap()
}

/// Returns the exit status and the findings. A finding is four texts: its check, its verdict, its
/// subject, and its evidence with its remedy.
fn examine(machine: &Machine, variables: &[(&str, &str)]) -> (i32, Vec<[String; 4]>) {
    let root = machine.0.to_str().unwrap();
    let Output { status, stdout, stderr } =
        ferroccl(&["doctor", "--json", "--root", root], variables);
    assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    let report: Value = serde_json::from_slice(&stdout).unwrap();
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or("").to_owned();
    let findings = report["findings"].as_array().unwrap().iter().map(|finding| {
        let rest = format!("{} / {}", text(finding, "evidence"), text(finding, "remedy"));
        assert_eq!(finding["remedy"].is_null(), finding["verdict"] == "ok", "{finding}");
        assert!(!text(finding, "evidence").is_empty(), "{finding}");
        [text(finding, "check"), text(finding, "verdict"), text(finding, "subject"), rest]
    });
    (status.code().unwrap(), findings.collect())
}

const NIC: &str = "sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0";
const GPU: &str = "sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0";
const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

/// A change to a healthy machine or to the environment variables, and the expected finding.
struct Plant {
    spoil: fn(&Machine),
    variables: &'static [(&'static str, &'static str)],
    check: &'static str,
    verdict: &'static str,
    words: &'static [&'static str],
}

const fn plant(
    check: &'static str,
    verdict: &'static str,
    spoil: fn(&Machine),
    words: &'static [&'static str],
) -> Plant {
    Plant { spoil, variables: &[], check, verdict, words }
}

const fn told(
    variables: &'static [(&'static str, &'static str)],
    check: &'static str,
    verdict: &'static str,
    words: &'static [&'static str],
) -> Plant {
    Plant { spoil: |_| {}, variables, check, verdict, words }
}

fn limit(machine: &Machine, name: &str, value: &str) {
    let text = std::fs::read_to_string(machine.path("proc/self/limits")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    let spoiled = format!("{name:<26}{value:<21}{value:<21}bytes");
    machine.write("proc/self/limits", text.replace(line, &spoiled));
}

fn replace(machine: &Machine, file: &str, from: &str, to: &str) {
    let text = std::fs::read_to_string(machine.path(file)).unwrap();
    assert!(text.contains(from), "{file}: {text}");
    machine.write(file, text.replace(from, to));
}

const PLANTS: &[Plant] = &[
    // Limits and containers.
    plant(
        "memlock",
        "fault",
        |m| limit(m, "Max locked memory", "8388608"),
        &["at most 8192 KiB", "--ulimit memlock=-1"],
    ),
    plant(
        "memlock",
        "warning",
        |m| limit(m, "Max locked memory", "8589934592"),
        &["large buffers"],
    ),
    plant("open-files", "advice", |m| limit(m, "Max open files", "1024"), &["nofile=65536"]),
    plant(
        "shared-memory",
        "warning",
        |m| replace(m, "proc/self/mountinfo", "size=1056780404k", "size=65536k"),
        &["/dev/shm", "64 MiB", "--shm-size"],
    ),
    plant(
        "shared-memory",
        "warning",
        |m| m.write("proc/self/mountinfo", "\n1 2 3"),
        &["--shm-size"],
    ),
    plant(
        "container",
        "advice",
        |m| replace(m, "proc/self/status", "Seccomp:\t0", "Seccomp:\t2"),
        &["NUMA", "--cap-add SYS_NICE"],
    ),
    // Placement.
    told(
        &[("FERROCCL_NEAR_PCI", "0000:83:00.0")],
        "affinity",
        "warning",
        &["bound to NUMA node 0", "node 1", "numactl"],
    ),
    told(&[("FERROCCL_NEAR_PCI", "0000:93:00.0")], "affinity", "fault", &["no such PCI device"]),
    plant(
        "affinity",
        "advice",
        |m| replace(m, "proc/self/status", "0-31", "0-63"),
        &["several NUMA nodes", "numactl"],
    ),
    plant(
        "affinity",
        "advice",
        |m| replace(m, "proc/self/status", "0-31", "7"),
        &["only one of 64 processors: processor 7"],
    ),
    plant(
        "numa-balancing",
        "advice",
        |m| m.write("proc/sys/kernel/numa_balancing", "1\n"),
        &["kernel.numa_balancing=0"],
    ),
    // The bus.
    plant(
        "pcie-link",
        "warning",
        |m| m.write(&format!("{NIC}/current_link_width"), "8\n"),
        &["mlx5_0 (0000:14:00.0)", "8 lanes at 32 GT/s", "16 lanes", "reseat"],
    ),
    plant(
        "pcie-link",
        "warning",
        |m| {
            m.write(&format!("{GPU}/current_link_width"), "8\n");
            m.write(&format!("{GPU}/../max_link_width"), "8\n");
        },
        &["GPU 0000:13:00.0", "its slot 8 lanes", "move the card"],
    ),
    plant(
        "pcie-link",
        "warning",
        |m| m.write(&format!("{NIC}/current_link_speed"), "8.0 GT/s PCIe\n"),
        &["mlx5_0", "at 8 GT/s", "BIOS"],
    ),
    plant(
        "pcie-link",
        "advice",
        |m| m.write(&format!("{GPU}/current_link_speed"), "2.5 GT/s PCIe\n"),
        &["GPU 0000:13:00.0", "nothing to do"],
    ),
    plant(
        "pcie-link",
        "warning",
        |m| m.write(&format!("{PORT}/rate"), "800 Gb/sec (4X XDR)\n"),
        &["carries 800 Gb/s", "504 Gb/s"],
    ),
    plant(
        "pcie-link",
        "unknown",
        |m| m.write(&format!("{NIC}/current_link_width"), "255\n"),
        &["mlx5_0", "lspci"],
    ),
    plant(
        "acs",
        "warning",
        |m| m.write("sys/bus/pci/devices/0000:12:00.0/config", configuration(0x1d)),
        &["bridge 0000:12:00.0", "ReqRedir", "GPU 0000:13:00.0", "setpci -s 0000:12:00.0"],
    ),
    plant(
        "acs",
        "unknown",
        |m| m.write("sys/bus/pci/devices/0000:12:00.0/config", [0; 64]),
        &["0000:12:00.0 (64 bytes)", "as root"],
    ),
    plant(
        "iommu",
        "warning",
        |m| m.write("sys/kernel/iommu_groups/1/type", "DMA-FQ\n"),
        &["GPU 0000:83:00.0, mlx5_1", "iommu=pt"],
    ),
    plant(
        "pcie-link",
        "advice",
        |m| {
            m.write(&format!("{NIC}/current_link_speed"), "16.0 GT/s PCIe\n");
            m.write(&format!("{NIC}/../max_link_speed"), "16.0 GT/s PCIe\n");
            m.write(&format!("{PORT}/rate"), "200 Gb/sec (4X HDR)\n");
        },
        &["mlx5_0", "its slot 16 lanes at 16 GT/s", "generation"],
    ),
    // GPUs.
    plant(
        "gpu-driver",
        "fault",
        |m| m.plant_library("libcuda.so", "1", "535.104.05"),
        &["module nvidia 550.54.15", "libcuda.so.1 535.104.05"],
    ),
    plant(
        "gpu-driver",
        "fault",
        |m| m.write("sys/module/nvidia_uvm/version", "535.161.07"),
        &["module nvidia_uvm 535.161.07"],
    ),
    plant("gpu-driver", "warning", |m| m.remove(&format!("{GPU}/driver")), &["modprobe nvidia"]),
    plant(
        "gpu-driver",
        "advice",
        |m| m.link(&format!("{GPU}/driver"), "sys/bus/pci/drivers/vfio-pci"),
        &["virtual machines"],
    ),
    plant("gpu-driver", "warning", |m| m.remove("dev/nvidiactl"), &["--gpus all"]),
    plant(
        "gpu-memory",
        "warning",
        |m| m.remove("sys/module/nvidia_peermem"),
        &["not the open ones", "modprobe nvidia_peermem"],
    ),
    plant(
        "gpu-memory",
        "warning",
        |m| {
            without_peermem(m);
            m.write("proc/sys/kernel/osrelease", "5.4.0-100-generic\n");
        },
        &["older than 5.12"],
    ),
    plant(
        "gpu-memory",
        "warning",
        |m| {
            without_peermem(m);
            m.write("boot/config-6.8.0-45-generic", "# CONFIG_PCI_P2PDMA is not set\n");
        },
        &["CONFIG_PCI_P2PDMA"],
    ),
    plant("gpu-memory", "unknown", without_peermem, &["/boot/config-6.8.0-45-generic"]),
    plant(
        "gpu-memory",
        "warning",
        |m| {
            with_amd(m);
            m.write("boot/config-6.8.0-45-generic", "CONFIG_PCI_P2PDMA=y\n");
        },
        &["AMD", "built without CONFIG_DMABUF_MOVE_NOTIFY"],
    ),
    plant("gpu-memory", "unknown", with_amd, &["AMD", "CONFIG_PCI_P2PDMA"]),
    // Network devices.
    told(&[("NCCL_IB_HCA", "=mlx9_0")], "rdma-ports", "fault", &["=mlx9_0", "mlx5_0:1, mlx5_1:1"]),
    plant(
        "rdma-ports",
        "advice",
        |m| m.write(&format!("{NIC}/../class"), "0x020700\n"),
        &["0000:12:01.0", "has no device for it"],
    ),
    plant(
        "rdma-ports",
        "warning",
        |m| {
            m.write(&format!("{PORT}/state"), "1: DOWN\n");
            m.write(&format!("{PORT}/phys_state"), "2: Polling\n");
        },
        &["mlx5_0:1", "1: DOWN", "cable"],
    ),
    plant("rdma-ports", "fault", |m| m.remove("dev/infiniband"), &["--device /dev/infiniband"]),
    plant(
        "gids",
        "fault",
        |m| {
            for row in 0..4 {
                m.write(&format!("{PORT}/gid_attrs/types/{row}"), "IB/RoCE v1\n");
            }
        },
        &["mlx5_0:1", "none of the port's addresses is of RoCE v2", "show_gids"],
    ),
    plant(
        "gids",
        "warning",
        |m| {
            for row in 2..4 {
                m.write(&format!("{PORT}/gids/{row}"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
            }
        },
        &["mlx5_0:1", "which is link-local"],
    ),
    told(&[("NCCL_IB_GID_INDEX", "2")], "gids", "warning", &["RoCE v1", "FERROCCL_IB_GID_INDEX"]),
    told(&[("FERROCCL_IB_GID_INDEX", "4")], "gids", "fault", &["row 4", "has no address"]),
    told(&[("FERROCCL_IB_ADDR_RANGE", "192.168.0.0/16")], "gids", "fault", &["10.1.0.1"]),
    told(&[("FERROCCL_IB_ADDR_FAMILY", "IPv4")], "gids", "fault", &["neither AF_INET nor"]),
    plant(
        "mtu",
        "warning",
        |m| {
            m.write("sys/class/net/eth2/mtu", "1500\n");
            m.write("sys/class/net/eth3/mtu", "1500\n");
        },
        &["mlx5_0:1", "1500", "carry 1024 bytes", "ip link set eth2 mtu 9000"],
    ),
    plant(
        "mtu",
        "warning",
        |m| m.write("sys/class/net/eth3/mtu", "4200\n"),
        &["eth2 9000, eth3 4200"],
    ),
    plant(
        "rdma-counters",
        "warning",
        |m| m.write(&format!("{PORT}/hw_counters/out_of_sequence"), "20000\n"),
        &["mlx5_0:1", "out_of_sequence 20000", "lost", "PFC or ECN"],
    ),
    plant(
        "rdma-counters",
        "advice",
        |m| m.write(&format!("{PORT}/counters/link_downed"), "2\n"),
        &["link_downed 2", "cable"],
    ),
    plant(
        "pfc-ecn",
        "advice",
        |m| {
            m.write("sys/class/net/eth2/ecn/roce_np/enable/3", "0\n");
            m.write("sys/class/net/eth2/ecn/roce_rp/enable/3", "1\n");
        },
        &["mlx5_0:1", "notices to senders", "roce_np"],
    ),
    plant(
        "pfc-ecn",
        "unknown",
        |m| {
            m.remove(&format!("{PORT}/hw_counters/np_ecn_marked_roce_packets"));
            m.remove(&format!("{PORT}/hw_counters/rp_cnp_handled"));
        },
        &["mlnx_qos"],
    ),
    told(&[("FERROCCL_SOCKET_IFNAME", "eth9")], "interfaces", "fault", &["eth9", "eth2, eth3, lo"]),
    told(&[("NCCL_SOCKET_IFNAME", "=lo")], "interfaces", "warning", &["only loopback"]),
    Plant {
        spoil: slow_interface,
        variables: &[("FERROCCL_SOCKET_IFNAME", "=eno1")],
        check: "interfaces",
        verdict: "warning",
        words: &["eno1 is much slower than", "(400000 Mb/s)"],
    },
    plant("interfaces", "advice", slow_interface, &["eno1", "first interface that answers"]),
    Plant {
        spoil: |m| m.write("sys/class/net/eth2/operstate", "down\n"),
        variables: &[("FERROCCL_SOCKET_IFNAME", "eth2")],
        check: "interfaces",
        verdict: "fault",
        words: &["no interface that ranks would use is up", "ip link set"],
    },
    Plant {
        spoil: |m| {
            m.write("sys/devices/virtual/net/docker0/mtu", "1500\n");
            m.write("sys/devices/virtual/net/docker0/operstate", "up\n");
            m.write("sys/devices/virtual/net/docker0/bridge/bridge_id", "1\n");
            m.link("sys/class/net/docker0", "sys/devices/virtual/net/docker0");
        },
        variables: &[("FERROCCL_SOCKET_IFNAME", "docker")],
        check: "interfaces",
        verdict: "warning",
        words: &["only bridges", "docker0"],
    },
    // Configuration, libraries and plugin.
    told(&[("FERROCCL_SLOTS", "many")], "configuration", "fault", &["FERROCCL_SLOTS", "many"]),
    plant(
        "libraries",
        "fault",
        |m| m.remove("usr/lib/x86_64-linux-gnu/libibverbs.so.1"),
        &["libibverbs.so.1", "cannot be used", "rdma-core"],
    ),
    plant(
        "libraries",
        "fault",
        |m| m.remove("usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        &["libcuda.so.1", "container toolkit"],
    ),
    Plant {
        spoil: |m| m.write("opt/other/libnccl.so.2", ""),
        variables: &[("LD_LIBRARY_PATH", "/opt/other")],
        check: "libraries",
        verdict: "warning",
        words: &["libnccl.so.2", "several", "2.27.5"],
    },
    Plant {
        spoil: |m| {
            m.plant_library("libfabric.so", "1", "1.20.0");
            m.write("opt/other/libfabric.so.1", "");
        },
        variables: &[("LD_LIBRARY_PATH", "/opt/other")],
        check: "libraries",
        verdict: "advice",
        words: &["libfabric.so.1", "several", "1.20.0", "LD_LIBRARY_PATH"],
    },
    told(&[("NCCL_NET_PLUGIN", "ferroccl")], "nccl-plugin", "fault", &["LD_LIBRARY_PATH"]),
    Plant {
        spoil: |m| m.write("opt/f/libnccl-net-ferroccl.so", ""),
        variables: &[("LD_LIBRARY_PATH", "/x:/opt/f")],
        check: "nccl-plugin",
        verdict: "advice",
        words: &["/opt/f/libnccl-net-ferroccl.so", "NCCL_NET_PLUGIN=ferroccl"],
    },
    // A GPU without an RDMA device near it.
    plant(
        "distance",
        "warning",
        |m| {
            m.remove("sys/class/infiniband/mlx5_0");
            m.remove("sys/class/net/eth2");
            m.write(&format!("{NIC}/vendor"), "0x8086\n");
        },
        &["GPU 0000:13:00.0", "mlx5_1", "SYS"],
    ),
    // A GPU whose nearest RDMA device is not selected.
    told(
        &[("FERROCCL_IB_HCA", "mlx5_1")],
        "distance",
        "advice",
        &["GPU 0000:13:00.0", "(mlx5_0, below", "PIX", "in use are farther: mlx5_1", "SYS"],
    ),
];

fn without_peermem(machine: &Machine) {
    machine.remove("sys/module/nvidia_peermem");
    replace(machine, "proc/driver/nvidia/version", "x86_64 Kernel Module", "Open Kernel Module");
}

fn with_amd(machine: &Machine) {
    machine.write(&format!("{GPU}/vendor"), "0x1002\n");
    machine.link(&format!("{GPU}/driver"), "sys/bus/pci/drivers/amdgpu");
    machine.write("sys/bus/pci/drivers/amdgpu/module", "");
}

fn slow_interface(machine: &Machine) {
    let path = "sys/devices/pci0000:80/0000:80:02.0/net/eno1";
    for (file, text) in [("mtu", "1500"), ("operstate", "up"), ("speed", "1000")] {
        machine.write(&format!("{path}/{file}"), format!("{text}\n"));
    }
    machine.link("sys/class/net/eno1", path);
}

#[test]
fn a_healthy_machine_has_nothing_to_report() {
    let (status, found) = examine(&Machine::healthy(), &[]);
    assert_eq!(status, 0, "{found:?}");
    let others: Vec<_> = found.iter().filter(|[_, verdict, ..]| verdict != "ok").collect();
    // An imitated machine is a tree of files without routes, so `bootstrap` reports unknown.
    assert!(others.len() == 1 && others[0][0] == "bootstrap", "{others:?}");
    let mut checks: Vec<&str> = found.iter().map(|[check, ..]| check.as_str()).collect();
    checks.sort_unstable();
    checks.dedup();
    assert_eq!(checks.len(), CHECKS.len(), "{checks:?}");
    let near = found.iter().filter(|[check, .., said]| check == "distance" && said.contains("PIX"));
    assert_eq!(near.count(), 2, "{found:?}");
}

#[test]
fn each_planted_fault_is_found_and_nothing_else() {
    for Plant { spoil, variables, check, verdict, words } in PLANTS {
        let machine = Machine::healthy();
        spoil(&machine);
        let (status, found) = examine(&machine, variables);
        let others = |[name, verdict, ..]: &&[String; 4]| verdict != "ok" && name != "bootstrap";
        let found: Vec<_> = found.iter().filter(others).collect();
        let wrong = matches!(*verdict, "fault" | "warning");
        assert_eq!(status, i32::from(wrong), "{check} {words:?}: {found:?}");
        let expected = |finding: &&&[String; 4]| {
            let [name, judged, ..] = **finding;
            let text = finding.join(" ");
            name == check && judged == verdict && words.iter().all(|word| text.contains(word))
        };
        assert!(found.iter().any(|finding| expected(&finding)), "{check} {words:?}: {found:?}");
        // A fault of the port nearest to a GPU leads to a second finding, by `distance`: the next
        // port is farther.
        let follows = |name: &str| *check == "rdma-ports" && name == "distance";
        let strangers: Vec<_> =
            found.iter().filter(|[name, ..]| name != check && !follows(name)).collect();
        assert!(strangers.is_empty(), "{check} {words:?}: {strangers:?}");
    }
}

#[test]
fn every_check_has_a_planted_fault() {
    // An imitated machine has no routes and peers. Other tests run `bootstrap` and `peer` on the
    // machine on which the tests run.
    let missing = CHECKS.iter().map(|check| check.name).filter(|name| {
        PLANTS.iter().all(|plant| plant.check != *name) && !["bootstrap", "peer"].contains(name)
    });
    assert_eq!(missing.count(), 0);
}

#[test]
fn only_harmful_settings_are_reported() {
    // CAP_IPC_LOCK lifts the limit on locked memory, but not in a user namespace.
    let machine = Machine::healthy();
    limit(&machine, "Max locked memory", "65536");
    replace(&machine, "proc/self/status", "0000000000000000", "0000000000004000");
    assert_eq!(examine(&machine, &[]).0, 0);
    machine.write("proc/self/uid_map", "0 1000 1\n");
    assert_eq!(examine(&machine, &[]).0, 1);
    // NVIDIA's open kernel modules provide dma-bufs.
    let machine = Machine::healthy();
    without_peermem(&machine);
    machine.write("boot/config-6.8.0-45-generic", "CONFIG_PCI_P2PDMA=y\n");
    let (_, found) = examine(&machine, &[]);
    assert!(found.iter().any(|[check, verdict, .., said]| {
        check == "gpu-memory" && verdict == "ok" && said.contains("dma-buf")
    }));
    // A port that is down is reported only if it is selected.
    let machine = Machine::healthy();
    machine.write(&format!("{PORT}/state"), "1: DOWN\n");
    machine.write(&format!("{PORT}/phys_state"), "2: Polling\n");
    assert_eq!(examine(&machine, &[]).0, 1);
    assert_eq!(examine(&machine, &[("FERROCCL_IB_HCA", "mlx5_1")]).0, 0);
    // A copied tree may have symbolic links with absolute paths of the original machine.
    let machine = Machine::healthy();
    machine.remove("sys/class/infiniband/mlx5_0");
    let device = format!("/{NIC}/infiniband/mlx5_0");
    std::os::unix::fs::symlink(device, machine.path("sys/class/infiniband/mlx5_0")).unwrap();
    let (status, found) = examine(&machine, &[]);
    assert_eq!(status, 0, "{found:?}");
    assert!(found.iter().any(|[.., said]| said.contains("devices: mlx5_0, below")));
    // With only one card below a root port, there is no traffic between cards to redirect.
    let machine = Machine::healthy();
    machine.write("sys/bus/pci/devices/0000:12:00.0/config", configuration(0x1d));
    machine.remove("sys/bus/pci/devices/0000:14:00.0");
    let quiet = |machine: &Machine| {
        let found = examine(machine, &[]).1;
        found.iter().all(|[check, verdict, ..]| check != "acs" || verdict == "ok")
    };
    assert!(quiet(&machine));
    machine.link("sys/bus/pci/devices/0000:14:00.0", NIC);
    assert!(!quiet(&machine));
    // The ACS setting SrcValid makes a bridge check the sender of packets, but redirects no packet.
    let machine = Machine::healthy();
    machine.write("sys/bus/pci/devices/0000:12:00.0/config", configuration(1));
    assert_eq!(examine(&machine, &[]).0, 0);
    let (status, _) = examine(&machine, &[("FERROCCL_NEAR_PCI", "0000:13:00.0")]);
    assert_eq!(status, 0);
}

/// A card of AMD has a switch of its own: the link from this switch to the slot is judged. The link
/// inside the card always has its full width and speed.
#[test]
fn an_amd_card_is_judged_by_the_link_and_path_of_its_own_switch() {
    let machine = Machine::healthy();
    with_amd(&machine);
    // The directory of the GPU now describes the upstream port of the card's own switch. The GPU
    // moves below that switch.
    let card = format!("{GPU}/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0");
    let directories = [GPU.to_owned(), format!("{GPU}/0000:1a:00.0"), card.clone()];
    let [upstream, downstream, _] = &directories;
    let downstream_inside = format!("{downstream}/0000:1b:00.0");
    machine.write(&format!("{upstream}/class"), "0x060400\n");
    for (path, class, width) in [
        (downstream.as_str(), "0x060400", "16"),
        (downstream_inside.as_str(), "0x060400", "16"),
        (card.as_str(), "0x038000", "16"),
    ] {
        for (file, text) in [
            ("class", class),
            ("vendor", "0x1002"),
            ("numa_node", "0"),
            ("current_link_width", width),
            ("max_link_width", "16"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
        ] {
            machine.write(&format!("{path}/{file}"), format!("{text}\n"));
        }
        let address = path.rsplit('/').next().unwrap();
        machine.link(&format!("sys/bus/pci/devices/{address}"), path);
    }
    machine.link(&format!("{card}/driver"), "sys/bus/pci/drivers/amdgpu");
    let found = examine(&machine, &[]).1;
    let near = |[check, verdict, subject, said]: &[String; 4]| {
        check == "distance"
            && verdict == "ok"
            && subject.contains("1c:00.0")
            && said.contains("PIX")
    };
    assert!(found.iter().any(near), "{found:?}");
    // The upstream port of the card's switch reports the width of the link to the slot.
    machine.write(&format!("{upstream}/current_link_width"), "8\n");
    let found = examine(&machine, &[]).1;
    let narrow = |[check, verdict, subject, said]: &[String; 4]| {
        check == "pcie-link"
            && verdict == "warning"
            && subject.contains("1c:00.0")
            && said.starts_with("8 lanes")
    };
    assert!(found.iter().any(narrow), "{found:?}");
}

#[test]
fn missing_and_odd_files_break_no_check() {
    let (status, found) = examine(&Machine::empty(), &[]);
    assert!(status <= 1 && found.iter().any(|[_, verdict, ..]| verdict == "unknown"), "{found:?}");
    // All files of a machine hold bytes that no kernel writes there.
    for odd in
        [&b""[..], b"\xff\xfe\x00", b"-1\n", b"99999999999999999999999\n", b"nan inf 1e999\n"]
    {
        let machine = Machine::healthy();
        let mut folders = vec![machine.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.symlink_metadata().unwrap() {
                    kind if kind.is_dir() => folders.push(path),
                    kind if kind.is_file() => std::fs::write(path, odd).unwrap(),
                    _ => {}
                }
            }
        }
        let (status, found) = examine(&machine, &[]);
        assert!(status <= 1 && !found.is_empty());
        assert!(!found.iter().any(|[.., said]| said.contains("mistake in ferroccl")), "{found:?}");
    }
}

#[test]
fn this_machine_is_examined_within_seconds() {
    let start = Instant::now();
    let Output { status, stdout, stderr } = ferroccl(&["doctor"], &[]);
    println!("{}", String::from_utf8_lossy(&stdout));
    assert!(matches!(status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&stderr));
    // On a machine of usual speed, the test fails if a check waits until its deadline.
    assert!(start.elapsed() < stretched(Duration::from_secs(5)));
    let text = String::from_utf8(stdout).unwrap();
    assert!(CHECKS.iter().all(|check| text.contains(&format!("{}:", check.name))), "{text}");
}

#[test]
fn an_open_port_is_ok_a_closed_one_a_warning_and_an_unknown_host_a_fault() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().to_string();
    let peer = |peer: &str| {
        let output = ferroccl(&["doctor", "--peer", peer], &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.contains("peer: ")).unwrap().to_owned()
    };
    let said = peer(&here);
    assert!(said.starts_with("ok") && said.contains("answers within"), "{said}");
    // In the next case, the route to the peer uses an interface that is not selected. The case is
    // skipped on a machine without a route to other hosts.
    let outer = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if outer.connect("192.0.2.77:9").is_ok() {
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let own = outer.local_addr().unwrap().ip();
        let there = format!("{own}:{}", listener.local_addr().unwrap().port());
        let variables = [("FERROCCL_SOCKET_IFNAME", "127.0.0.1")];
        let output = ferroccl(&["doctor", "--peer", &there], &variables);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("the route to this peer leads over another network"), "{text}");
    }
    drop(listener);
    let said = peer(&here);
    assert!(said.starts_with("warning") && said.contains("refused the connection"), "{said}");
    let said = peer("no-such-host.invalid:1");
    assert!(said.starts_with("fault"), "{said}");
}

#[test]
fn the_examples_of_the_help_work() {
    let help = String::from_utf8(ferroccl(&["doctor", "--help"], &[]).stdout).unwrap();
    let examples: Vec<_> =
        help.lines().filter_map(|line| line.strip_prefix("  ferroccl ")).collect();
    assert_eq!(examples.len(), 6, "{help}");
    for example in examples {
        let arguments: Vec<&str> = example.split(' ').collect();
        let output = ferroccl(&arguments, &[]);
        if example.ends_with("--ofi") && output.status.code() == Some(2) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("libfabric"), "{example}: {said}");
            continue;
        }
        assert!(matches!(output.status.code(), Some(0 | 1)), "{example}");
        assert!(!output.stdout.is_empty(), "{example}");
    }
    for wrong in [
        &["doctor", "--root", "/no/such"][..],
        &["doctor", "--root", "/proc/self/status"],
        &["doctor", "--peer", "nowhere"],
        &["doctor", "--root", "/tmp", "--peer", "a:1"],
        &["doctor", "--loud"],
    ] {
        let Output { status, stderr, .. } = ferroccl(wrong, &[]);
        assert!(status.code() == Some(2) && !stderr.is_empty(), "{wrong:?}");
    }
}

/// Returns the imitated machine of the example in `docs/doctor.md`, with its faults.
fn example() -> Machine {
    let machine = Machine::healthy();
    limit(&machine, "Max locked memory", "8388608");
    machine.remove("sys/module/nvidia_peermem");
    machine.write("sys/bus/pci/devices/0000:12:00.0/config", configuration(0x1d));
    machine
}

#[test]
fn its_page_lists_all_checks_and_shows_what_the_command_prints() {
    let page = include_str!("../../../../docs/doctor.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<String> =
        CHECKS.iter().map(|check| format!("| `{}` | {} |", check.name, check.looks_at)).collect();
    assert_eq!(rows, expected, "the table should be:\n{}", expected.join("\n"));
    let machine = example();
    let root = machine.0.to_str().unwrap();
    let Output { stdout, .. } = ferroccl(&["doctor", "--quiet", "--root", root], &[]);
    let (_, rest) = page.split_once("```text\n").unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    assert_eq!(String::from_utf8(stdout).unwrap(), shown);
}
