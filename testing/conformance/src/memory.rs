//! Memory: allocation, registration, sharing, import and release.

use ccl_core::transport::{EndpointId, MrKey, RemoteKey};
use ccl_memory::Region;

use crate::pair::{Pair, bytes_of};
use crate::{Fixture, Outcome, PASSED, Point, ensure, failed};

pub(crate) const POINTS: &[Point] = &[
    Point { name: "allocated memory is zeroed, aligned and long enough", check: allocated },
    Point { name: "each registration has its own key and can end only once", check: registered },
    Point { name: "bytes that are no key are not imported", check: nonsense },
    Point { name: "a side does not import its own key", check: own_key },
    Point { name: "only registered memory is shared, and only at a known endpoint", check: shared },
];

fn allocated(fixture: &dyn Fixture) -> Outcome {
    let device = fixture.device(0);
    for bytes in [1, 64, 4097, 1 << 20] {
        let (region, key) = device.allocate(bytes).map_err(failed("allocating"))?;
        ensure!(region.bytes() >= bytes, "{} bytes were allocated, not {bytes}", region.bytes());
        ensure!(bytes_of(&region)?.iter().all(|&byte| byte == 0), "{bytes} bytes are not zeroed");
        ensure!((region.start() as usize).is_multiple_of(64), "memory is not aligned to 64 bytes");
        region.write(bytes - 1, &[1]).map_err(failed("writing"))?;
        device.deregister(key).map_err(failed("deregistering"))?;
    }
    PASSED
}

fn registered(fixture: &dyn Fixture) -> Outcome {
    let device = fixture.device(0);
    let region = Region::private(4096);
    let first = device.register(&region).map_err(failed("registering"))?;
    let second = device.register(&region).map_err(failed("registering twice"))?;
    ensure!(first != second, "two registrations have one key");
    device.deregister(first).map_err(failed("deregistering"))?;
    ensure!(device.deregister(first).is_err(), "a key was deregistered twice");
    device.deregister(second).map_err(failed("deregistering the second"))?;
    ensure!(device.deregister(MrKey(u64::MAX)).is_err(), "an unknown key was deregistered");
    PASSED
}

fn nonsense(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 4096)?;
    let [end, _] = &mut pair.ends;
    let good = end.lane.share(end.endpoint, end.inbox_key).map_err(failed("sharing"))?;
    for key in [Vec::new(), vec![7], vec![0xff; good.0.len()], vec![0; 1000]] {
        let imported = end.lane.import(end.endpoint, &RemoteKey(key.clone()));
        ensure!(imported.is_err(), "an invalid key of {} bytes was imported", key.len());
    }
    PASSED
}

fn own_key(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 4096)?;
    let [end, _] = &mut pair.ends;
    let own = end.lane.share(end.endpoint, end.inbox_key).map_err(failed("sharing"))?;
    ensure!(end.lane.import(end.endpoint, &own).is_err(), "a side imported its own key");
    PASSED
}

fn shared(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 4096)?;
    let [end, _] = &mut pair.ends;
    ensure!(end.lane.share(end.endpoint, MrKey(u64::MAX)).is_err(), "an unknown key was shared");
    let nowhere = EndpointId(end.endpoint.0 + 1000);
    ensure!(
        end.lane.share(nowhere, end.inbox_key).is_err(),
        "a key was shared at an unknown endpoint"
    );
    let (_, key) = end.device.allocate(4096).map_err(failed("allocating"))?;
    end.device.deregister(key).map_err(failed("deregistering"))?;
    ensure!(end.lane.share(end.endpoint, key).is_err(), "deregistered memory was shared");
    PASSED
}
