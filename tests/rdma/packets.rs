//! Packets on the link, as a capture shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::{devices, over};
use ccl_core::queue_pairs::Flow;
use ccl_harness::capture::Capture;
use ccl_harness::{ranks_with, stretched};
use ferroccl::{Config, NetworkCheck};

/// Length in bytes of the longest CTS, including the remote key of memory registered with a device.
const RECORD_BYTES_MAX: usize = 72;
/// Bytes of the message with which two ranks synchronize: its seal (a checksum), its header, and
/// one byte of payload.
const WORD: usize = 8 + 16 + 1;

/// Returns the address that a device sends from.
fn address(device: &str) -> Ipv4Addr {
    let (device, port) = device.split_once(':').unwrap();
    let gids = format!("/sys/class/infiniband/{device}/ports/{port}/gids");
    let gids = (0..8).filter_map(|row| std::fs::read_to_string(format!("{gids}/{row}")).ok());
    let addresses = gids.filter_map(|gid| gid.trim().parse::<Ipv6Addr>().ok()?.to_ipv4_mapped());
    addresses.max().expect("the device has no IPv4 address")
}

/// Sends `count` elements from rank 0 to rank 1, which calls `before` before it receives them.
fn one_way(config: Config, count: usize, before: impl Fn() + Send + Sync + 'static) {
    ranks_with(2, config, move |communicator| {
        // Both ranks synchronize here.
        let mut word = [7u8];
        if communicator.rank() == 0 {
            communicator.send(&word, 1).unwrap();
            let data: Vec<u32> = (0..count as u32).collect();
            communicator.send(&data, 1).unwrap();
        } else {
            communicator.recv(&mut word, 0).unwrap();
            before();
            let mut data = vec![0u32; count];
            communicator.recv(&mut data, 0).unwrap();
            assert!(data.iter().enumerate().all(|(at, value)| *value == at as u32));
        }
    });
}

#[test]
fn packets_follow_the_policy_and_control_has_its_own_traffic_class() {
    // Twice the size of all slots: half of the data needs further credits or CTS.
    const COUNT: usize = 1 << 20;
    let Some((devices, _turn)) = devices() else { return };
    let config = over(&devices, |config| {
        config.ib_policy = "bytes<64: qps=1 tc=64; qps=4 order=split chunk=4K".parse().unwrap();
        config.ib_traffic_class = 32;
        config.transport_settings.set("FERROCCL_IB_CONTROL_TC", "184");
        // With the network check, long round trips on a busy machine could lead to more slots,
        // which would hold all the data.
        config.check_network = NetworkCheck::Off;
    });
    let address = address(&devices[0]);
    let capture = Capture::start(&devices[0]);
    // The receiver is late: the first messages fill its slots, and it returns credits for them. For
    // the later messages, it sends CTS.
    one_way(config, COUNT, || std::thread::sleep(stretched(Duration::from_millis(500))));
    let packets = capture.end();
    let mut pairs: BTreeMap<u32, (usize, BTreeSet<u16>)> = BTreeMap::new();
    let (mut credits, mut cts, mut words) = (0, 0, 0);
    for packet in packets.iter().filter(|packet| !packet.is_mute()) {
        if packet.from == address {
            assert!(packet.payload > 0 && [16, 8].contains(&packet.dscp), "{packet:?}");
        } else {
            // An empty put that returns credits (in its immediate), or a CTS.
            let is_short = packet.payload <= RECORD_BYTES_MAX && packet.payload.is_multiple_of(8);
            assert!(is_short && packet.dscp == 46, "{packet:?}");
            credits += usize::from(packet.payload == 0);
            cts += usize::from(packet.payload > 0);
        }
        words += if packet.dscp == 16 { packet.payload } else { 0 };
        if packet.dscp == 8 {
            let (bytes, ports) = pairs.entry(packet.pair).or_default();
            *bytes += packet.payload;
            ports.insert(packet.source_port);
        }
    }
    println!(
        "{} packets, {credits} credits and {cts} CTS; bytes and ports by queue pair: {pairs:?}",
        packets.len()
    );
    // The numbers of credits and CTS depend on how late each side is.
    assert!(credits + cts > 0);
    assert_eq!(words, WORD, "bytes that were sent by the rule for short messages");
    assert_eq!(pairs.len(), 4, "number of queue pairs that carried data");
    let all: usize = pairs.values().map(|(bytes, _)| bytes).sum();
    assert!((4 * COUNT..4 * COUNT + 4096).contains(&all), "{all} bytes of data");
    assert!(pairs.values().all(|(bytes, _)| bytes.abs_diff(all / 4) < all / 100), "{pairs:?}");
    assert!(pairs.values().all(|(_, ports)| ports.len() == 1), "{pairs:?}");
    let ports: BTreeSet<u16> = pairs.values().flat_map(|(_, ports)| ports.clone()).collect();
    assert!(ports.len() > 1, "all flows look alike to a fabric: {ports:?}");
}

/// No byte leaves while the receiver withholds credits.
#[test]
fn nothing_leaves_without_a_credit() {
    const SLOT: usize = 16 << 10;
    const SLOTS: usize = 4;
    const MESSAGES: usize = 32;
    const PAUSE: Duration = Duration::from_secs(4);
    let Some((devices, _turn)) = devices() else { return };
    let config = over(&devices, |config| {
        // If no two ranks share memory, as here, slots have twice the configured length.
        (config.slots, config.slot_bytes.0) = (SLOTS as u32, SLOT / 2);
        config.ib_policy = "qps=2".parse().unwrap();
    });
    let address = address(&devices[0]);
    let capture = Capture::start(&devices[0]);
    one_way(config, MESSAGES * SLOT / 4, || std::thread::sleep(PAUSE));
    let packets = capture.end();
    let data: Vec<(Duration, usize)> = packets
        .iter()
        .filter(|packet| packet.from == address && packet.payload > 0)
        .map(|packet| (packet.time, packet.payload))
        .collect();
    let after = |at: usize| data[at + 1].0.saturating_sub(data[at].0);
    let longest = (0..data.len() - 1).max_by_key(|at| after(*at)).unwrap();
    let total = |part: &[(Duration, usize)]| part.iter().map(|(_, bytes)| bytes).sum::<usize>();
    let (first, later) = (total(&data[..=longest]), total(&data[longest + 1..]));
    println!("{first} bytes, then none for {:?}, then {later}", after(longest));
    // The first message is the synchronization. The credit of its slot comes back before the pause
    // or only after it, so data fills all slots or all but one.
    let message = SLOT + 16;
    assert!([SLOTS - 1, SLOTS].contains(&((first - WORD) / message)), "{first}");
    assert!(after(longest) > PAUSE * 3 / 4, "{:?}", after(longest));
    // Directly placed messages have no header.
    let headers = first + later - WORD - MESSAGES * SLOT;
    assert!(headers.is_multiple_of(16) && headers <= MESSAGES * 16, "{headers} bytes of headers");
}

/// Four queue pairs carry data before the change of the policy, and one afterwards. The captured
/// flows are those that the communicator reported.
#[test]
fn a_policy_is_changed_between_operations() {
    const COUNT: usize = 64 << 10;
    let Some((devices, _turn)) = devices() else { return };
    let config = over(&devices, |config| {
        config.ib_policy = "qps=4 order=split chunk=4K".parse().unwrap();
    });
    let address = address(&devices[0]);
    let capture = Capture::start(&devices[0]);
    let told = ranks_with(2, config, |communicator| {
        let mut data = vec![communicator.rank(); COUNT];
        let mut flows = Vec::new();
        for (policy, root) in [("qps=4 order=split chunk=4K", 0), ("qps=1", 0), ("qps=1", 1)] {
            communicator.set_policy(policy).unwrap();
            communicator.broadcast(&mut data, root).unwrap();
            flows.extend(communicator.flows());
        }
        let error = communicator.set_policy("qps=5").unwrap_err().to_string();
        assert!(error.contains("5 queue pairs") && error.contains("FERROCCL_IB_POLICY"), "{error}");
        assert_eq!(communicator.config().ib_policy.to_string(), "qps=1", "the old policy stays");
        flows
    });
    let packets = capture.end();
    let data = packets.iter().filter(|packet| packet.from == address && !packet.is_mute());
    let data: Vec<_> = data.filter(|packet| packet.payload > RECORD_BYTES_MAX).collect();
    for packet in &data {
        let is_it = |(to, flow): &(_, Flow)| {
            (flow.queue_pair, flow.source_port) == (packet.pair, packet.source_port)
                && (*to, flow.from) == (1, address.into())
        };
        assert!(told[0].iter().any(is_it), "{packet:?} is in none of the flows {:?}", told[0]);
    }
    let all: usize = data.iter().map(|packet| packet.payload).sum();
    let mut seen = 0;
    let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
    for packet in data {
        // A packet in the middle may belong to either side of the change.
        let half = if seen < all * 2 / 5 { Some(&mut before) } else { None };
        let half = if seen > all * 3 / 5 { Some(&mut after) } else { half };
        half.map(|pairs| pairs.insert(packet.pair));
        seen += packet.payload;
    }
    println!("{all} bytes; queue pairs first {before:?}, then {after:?}");
    assert_eq!((before.len(), after.len()), (4, 1));
}
