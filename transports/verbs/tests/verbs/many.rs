//! Many ranks, each with a device that has few queue pairs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_core::admission::{AdmissionError, Config, Directory, MessageLinks};
use ccl_core::execution::Link;
use ccl_core::time;
use ccl_core::transport::{Device, DeviceId, Secret, Transport};
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use ccl_transport_verbs::{Options, VerbsTransport};

const RANKS: u32 = 64;
const SECRET: Secret = Secret([7; 32]);
const WITHIN: Duration = Duration::from_secs(120);
const CONFIG: Config = Config {
    channels: 1,
    slots: 2,
    slots_min: 1,
    slot_bytes: 256,
    budget_bytes: 1 << 20,
    zero_copy_bytes_min: usize::MAX,
    registered_bytes_max: 0,
};

/// Sends a message from each of 64 ranks to every other rank. Returns the first error.
fn exchange(policy: &str, pairs: usize) -> Result<(), AdmissionError> {
    let options = Options {
        interfaces: "127.0.0.1".to_owned(),
        policy: policy.parse().unwrap(),
        ..Options::default()
    };
    let transport = VerbsTransport::over(functions(), options);
    let softs =
        Vec::from_iter((0..RANKS).map(|_| SoftDevice::new(Limits { pairs, ..Limits::default() })));
    let open = |soft: &SoftDevice| transport.open(&DeviceId(format!("{}:1", soft.name()))).unwrap();
    let devices: Vec<Arc<dyn Device>> = softs.iter().map(open).collect();
    let listeners = Vec::from_iter(devices.iter().map(|device| device.listen(&SECRET).unwrap()));
    let addresses = Vec::from_iter(listeners.iter().map(|listener| Some(listener.address())));
    let mut all = Vec::new();
    for (own, (device, listener)) in (0..RANKS).zip(devices.iter().zip(listeners)) {
        let lane = device.lane().unwrap();
        let mut links =
            MessageLinks::new(Arc::clone(device), lane, CONFIG, RANKS as usize - 1).unwrap();
        let mut addresses = addresses.clone();
        addresses[own as usize] = None;
        links.connect_on_demand(
            listener,
            Directory { own, addresses, secret: SECRET, within: WITHIN },
        );
        all.push(links);
    }
    let begun = Instant::now();
    let count = (RANKS * RANKS) as usize;
    let (mut sent, mut received) = (vec![false; count], vec![false; count]);
    while !received
        .iter()
        .enumerate()
        .all(|(at, there)| *there || at % RANKS as usize == at / RANKS as usize)
    {
        assert!(
            begun.elapsed() < WITHIN,
            "only {} messages arrived in time",
            received.iter().filter(|r| **r).count()
        );
        let now = time::Instant::ZERO + begun.elapsed();
        for (own, links) in (0..RANKS).zip(&mut all) {
            links.poll(now)?;
            links.check_all()?;
            for peer in (0..RANKS).filter(|peer| *peer != own) {
                let (link, at) = (Link { peer, channel: 0 }, (own * RANKS + peer) as usize);
                if !sent[at] && links.writable(link) {
                    links.publish(link, 100, at as u64);
                    sent[at] = true;
                }
                if !received[at] && links.readable(link) {
                    assert_eq!(links.head(link), (100, u64::from(peer * RANKS + own)));
                    links.release(link);
                    received[at] = true;
                }
            }
            links.flush(now)?;
        }
    }
    Ok(())
}

/// Each rank needs two queue pairs for each of 63 peers: one for data, one for credits.
#[test]
fn an_all_to_all_of_64_ranks_fits_126_queue_pairs() {
    exchange("qps=1", 2 * 63).unwrap();
}

#[test]
fn too_few_queue_pairs_for_64_ranks_are_an_error_with_advice() {
    for (policy, pairs) in [("qps=1", 2 * 63 - 1), ("qps=16", 200)] {
        let error = exchange(policy, pairs).unwrap_err().to_string();
        assert!(error.contains("FERROCCL_IB_POLICY"), "{policy}: {error}");
    }
}
