//! A port of an open device, and its health.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use ccl_core::time::Instant;
use ccl_core::transport::TransportError;
use rdma_sys::*;

use crate::Options;
use crate::control::Control;
use crate::gid::{self, Choice, GidError};
use crate::native::{Context, Domain, GidRow};
use crate::status;

/// Largest number of failed queue pairs whose failures a port keeps for [`Port::take_failure`].
const PAIRS_MAX: usize = 256;

/// A port in use.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) context: Arc<Context>,
    pub(crate) domain: Arc<Domain>,
    /// Number of the port, from 1.
    pub(crate) number: u8,
    /// Attributes when the port was opened. Some can change later. From this copy, only width and
    /// speed of the link, and attributes that never change, are used.
    pub(crate) attr: ibv_port_attr,
    /// Addresses and packet length, which may change.
    located: Mutex<Located>,
    pub(crate) limits: ibv_device_attr,
    /// Index into the port's partition key (P_Key) table.
    pub(crate) partition: u16,
    pub(crate) control: Control,
    health: Mutex<Health>,
}

/// The addresses of a port, which may change: an interface gets another address, a subnet manager
/// gives another LID, and a GID table is filled again when a link comes back.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) choice: Choice,
    /// Other rows of the GID table that the options allow, the best first.
    pub(crate) others: Vec<GidRow>,
    /// True if reading the whole table again may find better rows: the table may have been
    /// incomplete at the last full read, or rows have gone since.
    is_partial: bool,
    pub(crate) lid: u16,
    pub(crate) mtu: ibv_mtu,
}

/// Health of a port, as events report it.
#[derive(Debug, Default)]
struct Health {
    /// Time at which the link went down, while it is down.
    down_since: Option<Instant>,
    /// Failure that the port does not recover from.
    fatal: Option<&'static str>,
    /// Queue pairs for which an event has reported a failure, each with that failure. Completions
    /// do not describe these failures.
    pairs: VecDeque<(u32, &'static str)>,
}

/// Returns the reason why a device of this sysfs node type cannot be used; none for a channel
/// adapter (InfiniBand or RoCE).
fn unsuitable(node_type: &str) -> Option<String> {
    let node_type = node_type.trim();
    (!node_type.starts_with("1:")).then(|| {
        format!(
            "it is neither InfiniBand nor RoCE (type \"{node_type}\"); for EFA, set \
             FERROCCL_TRANSPORT=ofi, which uses libfabric"
        )
    })
}

impl Port {
    pub(crate) fn open(
        context: Arc<Context>,
        number: u8,
        options: &Options,
    ) -> Result<Port, TransportError> {
        let title = format!("{}:{number}", context.name());
        let unusable = |reason| TransportError::Unusable { what: title.clone(), reason };
        if let Some(problem) = context.node_type().as_deref().and_then(unsuitable) {
            return Err(unusable(problem));
        }
        let (attr, limits) = (context.port(number)?, context.limits()?);
        if attr.state != IBV_PORT_ACTIVE {
            return Err(unusable(format!(
                "the port is not active (state {}): look at its cable, its interface, and, with \
                 InfiniBand, the subnet manager",
                attr.state
            )));
        }
        let (choice, others) = choose(&context, number, &attr, &options.gid)
            .map_err(|problem| unusable(problem.to_string()))?;
        let (lid, mtu) = (attr.lid, attr.active_mtu);
        let requested = options.partition;
        if context.partition(number, requested).is_none_or(|key| key == 0) {
            return Err(unusable(format!(
                "row {requested} of its partition key table has no key; choose another row \
                 (FERROCCL_IB_PKEY)"
            )));
        }
        let Options { control_traffic_class, traffic_class, .. } = *options;
        let title = (context.name(), number, choice.row.index);
        let read = |file: &str| std::fs::read_to_string(file).ok();
        let control = Control::choose(control_traffic_class, traffic_class, title, read);
        let domain = Domain::new(Arc::clone(&context))?;
        let is_partial =
            attr.link_layer == IBV_LINK_LAYER_ETHERNET && gid::is_link_local(choice.row.gid);
        let located = Mutex::new(Located { choice, others, is_partial, lid, mtu });
        let health = Mutex::default();
        let partition = requested;
        Ok(Port { context, domain, number, attr, located, limits, partition, control, health })
    }

    /// Returns the device's name and the port: `mlx5_0:1`.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.context.name(), self.number)
    }

    /// Returns the port's addresses as they were looked up last.
    pub(crate) fn located(&self) -> Located {
        self.located.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks the port's addresses up again. Each connection does so, since an address may change
    /// with or without an event.
    ///
    /// # Errors
    ///
    /// When the port cannot be queried, or no longer has an address that fits the rule.
    pub(crate) fn locate(&self, rule: &gid::Rule) -> Result<Located, TransportError> {
        let attr = self.context.port(self.number)?;
        let mut located = self.located.lock().unwrap_or_else(PoisonError::into_inner);
        let row = located.choice.row;
        // Reading one row is quick; reading all rows is not.
        let is_there = self.context.gid(self.number, row.index) == Some(row);
        if !is_there || located.is_partial {
            let choice = choose(&self.context, self.number, &attr, rule);
            let (choice, others) = choice.map_err(|problem| {
                let reason = format!("its address {} is gone, and {problem}", gid::ip(row.gid));
                TransportError::Unusable { what: self.name(), reason }
            })?;
            let (old, new) = (gid::ip(row.gid), gid::ip(choice.row.gid));
            if old != new {
                tracing::info!(port = self.name(), %old, %new, "the address of a port has changed");
            }
            located.is_partial = self.is_ethernet() && gid::is_link_local(choice.row.gid);
            (located.choice, located.others) = (choice, others);
        }
        // The `others` are offered to the peer, so rows that are gone are dropped: if a link chose
        // an address that is gone, the device would refuse to connect the queue pairs.
        let known = located.others.len();
        let is_there = |row: &GidRow| self.context.gid(self.number, row.index) == Some(*row);
        located.others.retain(is_there);
        located.is_partial |= located.others.len() < known;
        (located.lid, located.mtu) = (attr.lid, attr.active_mtu);
        Ok(located.clone())
    }

    /// Returns a description of the port in one line, for people.
    pub(crate) fn description(&self) -> String {
        let Located { choice, mtu, .. } = self.located();
        let (mtu, gid) = (128 << mtu, choice.row);
        format!(
            "{} of {}, packets of {mtu} bytes, address {} ({}), credits and CTS of traffic class \
             {} ({})",
            if self.is_ethernet() { "RoCE" } else { "InfiniBand" },
            self.name(),
            gid::ip(gid.gid),
            choice.why,
            self.control.traffic_class,
            self.control.why,
        )
    }

    pub(crate) fn is_ethernet(&self) -> bool {
        self.attr.link_layer == IBV_LINK_LAYER_ETHERNET
    }

    /// Handles the events of the device. Any lane may do this for all lanes.
    pub(crate) fn look_after(&self, now: Instant) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(async_event) = self.context.async_event() {
            if async_event.port.is_some_and(|port| port != self.number) {
                continue;
            }
            match async_event.event {
                IBV_EVENT_PORT_ERR => {
                    health.down_since.get_or_insert(now);
                }
                IBV_EVENT_PORT_ACTIVE => health.down_since = None,
                IBV_EVENT_DEVICE_FATAL | IBV_EVENT_CQ_ERR => {
                    health.fatal.get_or_insert(status::event(async_event.event));
                }
                IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                    if health.pairs.len() == PAIRS_MAX {
                        health.pairs.pop_front();
                    }
                    let how = status::event(async_event.event);
                    health.pairs.extend(async_event.pair.map(|pair| (pair, how)));
                }
                _ => {}
            }
        }
    }

    /// Removes and returns the failure that an event has reported for a queue pair, if any.
    pub(crate) fn take_failure(&self, pair: u32) -> Option<&'static str> {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let at = health.pairs.iter().position(|(known, _)| *known == pair)?;
        health.pairs.remove(at).map(|(_, how)| how)
    }

    /// Returns why the port has failed; none while it works. A link that is down counts as a
    /// failure after `patience`.
    pub(crate) fn trouble(&self, now: Instant, patience: std::time::Duration) -> Option<String> {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fatal) = health.fatal {
            return Some(format!("{}: {fatal}", self.name()));
        }
        let away = health.down_since.map(|since| now.since(since))?;
        (away >= patience).then(|| {
            format!(
                "{}: the port lost its link {away:.1?} ago, and it has not come back; look at the \
                 cable and the switch",
                self.name()
            )
        })
    }
}

/// Returns the address that the rule chooses now, and others that fit the rule.
fn choose(
    context: &Context,
    number: u8,
    attr: &ibv_port_attr,
    rule: &gid::Rule,
) -> Result<(Choice, Vec<GidRow>), GidError> {
    let rows = context.gids(number, attr.gid_tbl_len.max(0) as u32);
    let choice = rule.choose(&rows, attr.link_layer)?;
    let others = rule.others(&rows, attr.link_layer, choice.row);
    Ok((choice, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_no_channel_adapters_are_refused() {
        assert_eq!(unsuitable("1: CA\n"), None);
        // EFA, iWARP, usNIC, and an empty type.
        for node_type in ["7: unspecified\n", "4: RNIC\n", "5: usNIC\n", "\n"] {
            let problem = unsuitable(node_type).unwrap();
            assert!(problem.contains("FERROCCL_TRANSPORT=ofi"), "{problem}");
        }
    }
}
