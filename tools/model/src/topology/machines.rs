//! Tests of distances within preset machines.

use ccl_core::topology::machine::{Class, Kind, Machine};

use super::presets;

fn machine(name: &str) -> Machine {
    presets::machine(name).unwrap()
}

fn named(machine: &Machine, name: &str) -> usize {
    machine.parts.iter().position(|part| part.name == name).unwrap()
}

fn class(machine: &Machine, from: &str, to: &str) -> String {
    let (from, to) = (named(machine, from), named(machine, to));
    assert_eq!(machine.path(from, to), machine.path(to, from));
    machine.path(from, to).class.to_string()
}

#[test]
fn accelerators_reach_each_other_by_their_own_links() {
    let h100 = machine("h100");
    assert_eq!(class(&h100, "gpu0", "gpu7"), "NV18");
    let path = h100.path(named(&h100, "gpu0"), named(&h100, "gpu5"));
    assert_eq!(path.speed.bytes_per_s, 450e9);
    let mi300 = machine("mi300x");
    assert_eq!(class(&mi300, "gpu0", "gpu7"), "XG1");
    let path = mi300.path(named(&mi300, "gpu0"), named(&mi300, "gpu5"));
    assert_eq!(path.speed.bytes_per_s, 64e9);
}

#[test]
fn classes_are_those_of_nvidia_smi() {
    let h100 = machine("h100");
    for (from, to, expected) in [
        ("gpu0", "gpu0", "X"),
        ("gpu0", "mlx5_0", "PIX"),
        ("gpu0", "mlx5_1", "NODE"),
        ("gpu0", "mlx5_7", "SYS"),
        ("mlx5_0", "mlx5_4", "SYS"),
        ("numa0", "gpu0", "PHB"),
        ("numa0", "gpu7", "SYS"),
        ("numa0", "numa1", "SHM"),
    ] {
        assert_eq!(class(&h100, from, to), expected, "{from} {to}");
    }
    let a100 = machine("a100");
    assert_eq!(class(&a100, "gpu0", "gpu1"), "NV12");
    assert_eq!(class(&a100, "gpu0", "mlx5_0"), "PXB");
}

#[test]
fn each_accelerator_has_a_nic_of_its_own() {
    for name in ["a100", "h100", "b200", "p5"] {
        let machine = machine(name);
        let mut taken = vec![0; machine.parts.len()];
        for gpu in machine.of(Kind::Gpu) {
            let nic = machine.nearest_nic(gpu, &taken).unwrap();
            taken[nic] += 1;
            assert!(machine.plugged(gpu, nic).class <= Class::Pxb, "{name}");
        }
        assert_eq!(taken.iter().max(), Some(&1), "{name}");
    }
}
