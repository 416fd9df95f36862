//! Devices that take no memory any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Caps, Connecting, Device, Event, Lane, Listener, LocalSlice, MrKey, Secret,
    TransportError, WorkRequest,
};
use ccl_memory::Region;
use ccl_transport_rails::RailsDevice;
use ccl_transport_sim::{Conditions, World};

use crate::failing::meet;
use crate::house::House;

/// A device that refuses memory with this error number, unless it is 0.
#[derive(Clone, Debug)]
struct Refusing {
    inner: Arc<dyn Device>,
    code: Arc<AtomicI32>,
}

impl Refusing {
    fn check(&self) -> Result<(), TransportError> {
        let code = self.code.load(Ordering::Relaxed);
        let (call, reason, advice) = ("register", "as told".to_owned(), "tell it otherwise");
        if code == 0 { Ok(()) } else { Err(TransportError::Os { call, code, reason, advice }) }
    }
}

impl Device for Refusing {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        self.check().and_then(|()| self.inner.allocate(bytes))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        self.check().and_then(|()| self.inner.register(region))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        self.inner.deregister(key)
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        self.inner.listen(secret)
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        self.inner.connect(address, secret, hello, deadline)
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        self.inner.lane()
    }
}

/// A house whose devices of side 0 refuse when they are told to.
fn house() -> (House, [Arc<AtomicI32>; 2]) {
    let conditions = Conditions { redirects: false, ..Conditions::default() };
    let mut house = House::new([2, 2], conditions, 5);
    let codes = [(); 2].map(|()| Arc::new(AtomicI32::new(0)));
    let refusing = |at: u32| -> (String, Arc<dyn Device>) {
        let code = Arc::clone(&codes[at as usize]);
        (format!("sim{at}"), Arc::new(Refusing { inner: house.world.device(2 * at), code }))
    };
    let devices = [0, 1].map(refusing).to_vec();
    house.devices[0] = Arc::new(RailsDevice::new(devices).unwrap());
    (house, codes)
}

/// Polls a lane until an event that counts has come; the others go on meanwhile.
fn await_event(world: &World, lanes: &mut [Box<dyn Lane>; 2], side: usize) -> Event {
    let until = world.now() + Duration::from_secs(10);
    loop {
        for (at, lane) in lanes.iter_mut().enumerate() {
            let mut events = Vec::new();
            lane.poll(world.now(), &mut events).unwrap();
            let counts = |event: &Event| !matches!(event, Event::Done { .. });
            if let Some(event) = events.into_iter().find(counts)
                && at == side
            {
                return event;
            }
        }
        world.step();
        assert!(world.now() < until);
    }
}

#[test]
fn memory_that_one_device_does_not_take_goes_over_the_others() {
    const BYTES: usize = 4096;
    const EIO: i32 = 5;
    for broken in [0, 1] {
        let (house, codes) = house();
        let world = &house.world;
        let mut lanes = [0, 1].map(|side: usize| house.devices[side].lane().unwrap());
        let mut connected = meet(&house, 0).into_iter();
        let endpoints =
            lanes.each_mut().map(|lane| lane.attach(connected.next().unwrap()).unwrap());
        codes[broken].store(EIO, Ordering::Relaxed);
        let memory = [0, 1].map(|side: usize| house.devices[side].allocate(BYTES).unwrap());
        let keys = [0, 1].map(|side| lanes[side].share(endpoints[side], memory[side].1).unwrap());
        let remotes =
            [0, 1].map(|side| lanes[side].import(endpoints[side], &keys[1 - side]).unwrap());
        for side in [0, 1] {
            memory[side].0.write(0, &[side as u8 + 1; BYTES / 2]).unwrap();
            let put = |at: usize| WorkRequest::Put {
                endpoint: endpoints[side],
                local: LocalSlice { key: memory[side].1, offset: at * 64, bytes: 64 },
                tail: None,
                grant: false,
                remote: remotes[side],
                remote_offset: BYTES / 2 + at * 64,
                immediate: Some(at as u32),
                id: at as u64,
            };
            let work: Vec<_> = (0..8).map(put).collect();
            assert_eq!(lanes[side].post(world.now(), &work).unwrap(), 8);
            for _ in 0..8 {
                let event = await_event(world, &mut lanes, 1 - side);
                assert!(matches!(event, Event::Arrived { bytes: 64, .. }), "{event:?}");
            }
            let mut seen = [0; 512];
            memory[1 - side].0.read(BYTES / 2, &mut seen).unwrap();
            assert_eq!(seen, [side as u8 + 1; 512]);
        }
        let carried = lanes[0].rails(endpoints[0]);
        assert_eq!(carried[broken].puts, 0, "{carried:?}");
        house.devices[0].deregister(memory[0].1).unwrap();
    }
}

#[test]
fn what_is_short_or_registered_is_so_with_all_devices() {
    const EIO: i32 = 5;
    const ENOMEM: i32 = 12;
    let (house, codes) = house();
    let (device, region) = (&house.devices[0], Region::private(4096));
    for at in [0, 1] {
        codes[at].store(ENOMEM, Ordering::Relaxed);
        let errors = [device.allocate(4096).unwrap_err(), device.register(&region).unwrap_err()];
        assert!(errors.iter().all(TransportError::is_shortage), "{errors:?}");
        codes[at].store(EIO, Ordering::Relaxed);
        let error = device.register(&region).unwrap_err();
        assert!(!error.is_shortage() && error.to_string().contains("as told"), "{error}");
        codes[at].store(0, Ordering::Relaxed);
    }
    codes.iter().for_each(|code| code.store(EIO, Ordering::Relaxed));
    assert!(device.allocate(4096).is_err());
    codes.iter().for_each(|code| code.store(0, Ordering::Relaxed));
    let key = device.register(&region).unwrap();
    device.deregister(key).unwrap();
}
