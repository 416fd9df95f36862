//! List of the ports of this machine, for tools that only describe the machine.

use ccl_core::transport::{LinkLayer, Locality};
use rdma_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE, ibv_port_attr,
};

use crate::VerbsTransport;
use crate::native::Context;

/// Code of NDR, the fastest generation that the library's function can report. Faster ports are
/// reported with this code, too.
const FASTEST: u8 = 128;

/// A port of a device as the library reports it, whether it can be used or not.
#[derive(Clone, Debug, PartialEq)]
pub struct PortInfo {
    /// Name of the port's device: `mlx5_0`.
    pub device: String,
    /// Number of the port, from 1.
    pub number: u8,
    /// True if the port is active.
    pub is_active: bool,
    /// Link layer of the port; none if the library does not know.
    pub layer: Option<LinkLayer>,
    /// Bandwidth in one direction, in bytes per second; none if the port reports an unknown width
    /// or speed.
    pub bytes_per_s: Option<f64>,
    /// True if the bandwidth may be higher than `bytes_per_s`: the library reports the same speed
    /// for this port and for all faster ones.
    pub is_at_least: bool,
    /// Position of the device in the machine, as far as sysfs shows it.
    pub locality: Locality,
}

impl VerbsTransport {
    /// Returns all ports of all devices that can be opened, whatever the options say; none without
    /// the library.
    #[must_use]
    pub fn list(&self) -> Vec<PortInfo> {
        let Ok(functions) = &self.functions else { return Vec::new() };
        let names = Context::names(functions).into_iter();
        let opened = names.filter_map(|name| Context::open(functions, &name).ok());
        opened.flat_map(|context| ports(&context)).collect()
    }
}

fn ports(context: &Context) -> Vec<PortInfo> {
    let count = context.limits().map_or(0, |limits| limits.phys_port_cnt);
    let locality = Locality { numa_node: context.numa_node(), pci_path: context.pci_path() };
    let port = |number| {
        let attr = context.port(number).ok()?;
        Some(PortInfo {
            device: context.name().to_owned(),
            number,
            is_active: attr.state == IBV_PORT_ACTIVE,
            layer: match attr.link_layer {
                IBV_LINK_LAYER_ETHERNET => Some(LinkLayer::Ethernet),
                IBV_LINK_LAYER_INFINIBAND => Some(LinkLayer::InfiniBand),
                _ => None,
            },
            bytes_per_s: bytes_per_s(&attr),
            is_at_least: attr.active_speed == FASTEST,
            locality: locality.clone(),
        })
    };
    (1..=count).filter_map(port).collect()
}

/// Returns the data bandwidth of a port in one direction, in bytes per second, without the overhead
/// of line coding. `active_width` and `active_speed` are codes of one bit each, which the
/// InfiniBand specification defines under "PortInfo".
pub(crate) fn bytes_per_s(attr: &ibv_port_attr) -> Option<f64> {
    let lanes = match attr.active_width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    // SDR to QDR send 10 bits per 8 bits of data, FDR sends 66 per 64. The other numbers are
    // data rates already.
    let gigabits = match attr.active_speed {
        1 => 2.5 * 0.8,
        2 => 5.0 * 0.8,
        4 => 10.0 * 0.8,
        8 => 10.0,
        16 => 14.0625 * 64.0 / 66.0,
        32 => 25.0,
        64 => 50.0,
        FASTEST => 100.0,
        _ => return None,
    };
    Some(lanes * gigabits * 1e9 / 8.0)
}
