//! PCIe links: whether each is as wide and as fast as its device allows, and at least as fast as
//! the device's active ports together.

use super::super::finding::Finding;
use super::super::host::Host;
use ccl_machine::devices::{self, Device, Kind};

/// Width and speed of a PCI function's link.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Link {
    lanes: u32,
    gigatransfers: f64,
}

impl Link {
    fn read(host: &Host, function: &str, which: &str) -> Option<Link> {
        let lanes = host.number(&format!("{function}/{which}_link_width"))?;
        let speed = host.text(&format!("{function}/{which}_link_speed"))?;
        let gigatransfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
        // Virtual functions report 0, or a number with all bits set.
        let known = (1..=32).contains(&lanes) && (1.0..1000.0).contains(&gigatransfers);
        known.then_some(Link { lanes, gigatransfers })
    }

    /// Returns the rate in one direction, in Gbit/s; packet headers are not subtracted.
    fn gigabits(self) -> f64 {
        let coding = if self.gigatransfers <= 5.0 { 0.8 } else { 128.0 / 130.0 };
        self.gigatransfers * f64::from(self.lanes) * coding
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} lanes at {} GT/s", self.lanes, self.gigatransfers)
    }
}

/// Checks whether links are as wide and as fast as their devices allow.
pub(super) fn links(host: &Host) -> Vec<Finding> {
    let devices = devices::on_bus(host);
    if devices.is_empty() {
        return vec![Finding::ok("", "there is no GPU and no network device on the PCI bus")];
    }
    devices.iter().flat_map(|(device, kind)| of(host, device, *kind)).collect()
}

fn of(host: &Host, device: &Device, kind: Kind) -> Vec<Finding> {
    // A GPU's own link may lead to a switch on its card, so the card's link is judged.
    let Some(function) = device.card() else { return Vec::new() };
    let subject = subject(device);
    let link = |which| Link::read(host, function, which);
    let (Some(now), Some(most)) = (link("current"), link("max")) else {
        let remedy = "look at LnkSta and LnkCap of `lspci -vv` on the machine itself; virtual \
                      machines and virtual functions have no link of their own";
        let evidence = "sysfs does not show the width and the speed of its link";
        return vec![Finding::unknown(subject, evidence, remedy)];
    };
    let slot = function.rsplit_once('/').and_then(|(bridge, _)| Link::read(host, bridge, "max"));
    let mut found = Vec::new();
    if now.lanes < most.lanes {
        let narrow = slot.is_some_and(|slot| slot.lanes <= now.lanes);
        let evidence = format!("{now}; the device supports {}", capable(most, slot));
        let remedy = match narrow {
            true => "move the card to a slot that has as many lanes as the card",
            false => {
                "reseat the card and its riser; look at the slot's lanes and bifurcation in the \
                 BIOS; if the link stays narrow, replace the card or the board"
            }
        };
        found.push(Finding::warning(subject.clone(), evidence, remedy));
    }
    if now.gigatransfers < most.gigatransfers {
        let evidence = format!("{now}; the device supports {}", capable(most, slot));
        let slow = slot.is_some_and(|slot| slot.gigatransfers <= now.gigatransfers);
        found.push(match kind {
            _ if slow => Finding::advice(
                subject.clone(),
                evidence,
                "if this rate is too low, move the card to a slot of the card's PCIe generation",
            ),
            Kind::Gpu => Finding::advice(
                subject.clone(),
                format!("{evidence}. GPUs that have nothing to do lower their link's speed"),
                "run this check again while a program uses the GPU",
            ),
            Kind::Rdma | Kind::Ethernet => Finding::warning(
                subject.clone(),
                evidence,
                "see which speed the BIOS sets for the slot; reseat the card and its riser: a \
                 link with errors lowers its speed (`dmesg`, `lspci -vv`: LnkSta)",
            ),
        });
    }
    found.extend(port_rate(host, device, now));
    if found.is_empty() {
        found.push(Finding::ok(subject, now.to_string()));
    }
    found
}

fn capable(most: Link, slot: Option<Link>) -> String {
    match slot {
        Some(slot) => format!("{most}, its slot {slot}"),
        None => most.to_string(),
    }
}

/// Returns a warning if the device's active ports together are faster than its PCIe link.
fn port_rate(host: &Host, device: &Device, link: Link) -> Option<Finding> {
    let ports = devices::ports(host, device);
    let active = ports.iter().filter(|port| port.is_active(host));
    let rates: Vec<f64> = active.filter_map(|port| port.gigabits(host)).collect();
    let all: f64 = rates.iter().sum();
    (all > link.gigabits()).then(|| {
        let carry = if rates.len() == 1 { "port carries" } else { "ports carry" };
        let evidence =
            format!("its {carry} {all} Gb/s, its PCIe link {:.0} Gb/s ({link})", link.gigabits());
        let remedy = "use a slot of the next PCIe generation, or expect the lower rate";
        Finding::warning(subject(device), evidence, remedy)
    })
}

/// Returns the device's name with its address.
fn subject(device: &Device) -> String {
    match device.address() {
        Some(address) if !device.name.contains(address) => format!("{} ({address})", device.name),
        _ => device.name.clone(),
    }
}
