//! A plugin after `init`, and the communicators that the plugin makes. Their methods are the calls
//! that NCCL makes; a call whose result is not `ncclSuccess` is an error ([`Refusal`]).
//!
//! Nothing here closes on drop, and communicators are `Copy`: some points (checks of a plugin)
//! close a communicator that has requests in flight, or use a closed one.

use std::ffi::c_int;
use std::os::fd::RawFd;

use nccl_net_abi::{Attributes, CUDA, HANDLE_BYTES, HOST, NcclResult, Profiler};

use crate::calls::{Calls, GROUP_MAX, HandleBuffer, Opaque, Part};
use crate::memory::Memory;
use crate::properties::Properties;
use crate::stop::{Outcome, Refusal, failed};

/// Value of the bytes after a handle, where a plugin must not write.
const CANARY: u8 = 0x5C;

/// Handle of a listener, by which peers connect to it.
pub(crate) type Handle = Vec<u8>;

/// A plugin after `init`, and one of its devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    /// Functions of the plugin.
    pub(crate) calls: Calls,
    context: Opaque,
    /// Number of the device that listens and connects.
    pub(crate) device: i32,
}

impl Net {
    /// Calls `init`, and takes the first device.
    pub(crate) fn init(calls: Calls, profiler: Profiler) -> Result<Net, Refusal> {
        let hash = 0x0123_4567_89AB_CDEF;
        let (result, context) = calls.init(hash, nccl_net_abi::UNDEFINED, profiler);
        accepted("init", result)?;
        Ok(Net { calls, context, device: 0 })
    }

    /// Returns the same plugin on another device.
    pub(crate) fn on(self, device: i32) -> Net {
        Net { device, ..self }
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> Result<i32, Refusal> {
        let (result, count) = self.calls.devices();
        accepted("devices", result).map(|()| count)
    }

    /// Merges several devices into one and returns its number, or the plugin's refusal; `None` if
    /// the plugin has no `makeVDevice`, or its interface has no room for so many devices.
    pub(crate) fn make_device(&self, parts: &[i32]) -> Option<Result<i32, Refusal>> {
        let (result, made) = self.calls.make_device(parts)?;
        Some(accepted("makeVDevice", result).map(|()| made))
    }

    /// Returns the properties of the device.
    pub(crate) fn properties(&self) -> Result<Properties, Refusal> {
        let properties = self.calls.properties(self.device);
        properties.map_err(|result| Refusal { call: "getProperties", result })
    }

    /// Returns a listener and its handle.
    pub(crate) fn listen(&self) -> Outcome<(Listener, Handle)> {
        let mut buffer = [CANARY; 2 * HANDLE_BYTES];
        let (result, raw) = self.calls.listen(self.context, self.device, &mut buffer);
        accepted("listen", result)?;
        if raw == 0 {
            return failed(
                "listen returned ncclSuccess without a communicator; it must return one",
            );
        }
        canary("listen", &buffer)?;
        Ok((Listener { net: *self, raw }, buffer[..HANDLE_BYTES].to_vec()))
    }

    /// Returns a connection attempt to the listener with that handle. The caller polls the attempt.
    pub(crate) fn dial(&self, handle: &[u8]) -> Dial {
        let mut buffer = [CANARY; 2 * HANDLE_BYTES];
        for (place, byte) in buffer[..HANDLE_BYTES].iter_mut().zip(handle) {
            *place = *byte;
        }
        Dial { net: *self, buffer }
    }

    /// Returns the size of each part of the request if the request is done, else `None`.
    pub(crate) fn test(&self, request: Opaque) -> Result<Option<Sizes>, Refusal> {
        let mut sizes = [c_int::MIN; GROUP_MAX];
        let (result, done) = self.calls.test(request, Some(&mut sizes));
        accepted("test", result)?;
        Ok((done != 0).then_some(sizes))
    }

    /// Announces the next operations; `None` if the plugin has no such function.
    pub(crate) fn set_attributes(&self, attributes: Attributes) -> Option<NcclResult> {
        self.calls.set_attributes(self.context, attributes)
    }

    /// Ends the context.
    pub(crate) fn finalize(self) -> Result<(), Refusal> {
        accepted("finalize", self.calls.finalize(self.context))
    }
}

/// Bytes of each part of a request; `c_int::MIN` where the plugin wrote nothing.
pub(crate) type Sizes = [c_int; GROUP_MAX];

/// A listening communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    net: Net,
    raw: Opaque,
}

impl Listener {
    /// Returns the next connection, if it is there.
    pub(crate) fn accept(&self) -> Result<Option<Comm>, Refusal> {
        let (result, raw, device_handle) = self.net.calls.accept(self.raw);
        accepted("accept", result)?;
        Ok((raw != 0).then_some(Comm {
            net: self.net,
            raw,
            device_handle,
            direction: Direction::Receives,
        }))
    }

    /// Closes the listener.
    pub(crate) fn close(self) -> Result<(), Refusal> {
        accepted("closeListen", self.net.calls.close_listen(self.raw))
    }
}

/// A connection attempt.
#[derive(Debug)]
pub(crate) struct Dial {
    net: Net,
    buffer: HandleBuffer,
}

impl Dial {
    /// Calls `connect` once more.
    pub(crate) fn poll(&mut self) -> Outcome<Option<Comm>> {
        Ok(self.try_poll()?.map_or_else(Err, Ok)?)
    }

    /// Calls `connect` once more. The inner error is the plugin's refusal; the outer one is a
    /// failure of the point: a write past the end of the handle.
    pub(crate) fn try_poll(&mut self) -> Outcome<Result<Option<Comm>, Refusal>> {
        let net = self.net;
        let (result, raw, device_handle) =
            net.calls.connect(net.context, net.device, &mut self.buffer);
        canary("connect", &self.buffer)?;
        let comm =
            (raw != 0).then_some(Comm { net, raw, device_handle, direction: Direction::Sends });
        Ok(accepted("connect", result).map(|()| comm))
    }
}

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Sends,
    Receives,
}

/// A communicator that sends or receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comm {
    /// Plugin that made the communicator.
    pub(crate) net: Net,
    /// The plugin's pointer to the communicator.
    pub(crate) raw: Opaque,
    /// Handle that device code uses, or 0 if there is none.
    pub(crate) device_handle: Opaque,
    direction: Direction,
}

impl Comm {
    /// Registers memory of the host.
    pub(crate) fn register(&self, memory: Memory) -> Result<Opaque, Refusal> {
        let (result, registration) = self.net.calls.register(self.raw, memory, HOST);
        accepted("regMr", result).map(|()| registration)
    }

    /// Registers memory as device memory with a DMA-BUF descriptor; `None` if the plugin has no
    /// `regMrDmaBuf`.
    pub(crate) fn register_dma_buf(
        &self,
        memory: Memory,
        descriptor: RawFd,
    ) -> Option<Result<Opaque, Refusal>> {
        let calls = self.net.calls;
        let (result, registration) = calls.register_dma_buf(self.raw, memory, CUDA, descriptor)?;
        Some(accepted("regMrDmaBuf", result).map(|()| registration))
    }

    /// Returns a registration in the form that device code uses; `None` if the plugin has no
    /// `getDeviceMr`.
    pub(crate) fn device_registration(
        &self,
        registration: Opaque,
    ) -> Option<Result<Opaque, Refusal>> {
        let (result, device) = self.net.calls.device_registration(self.raw, registration)?;
        Some(accepted("getDeviceMr", result).map(|()| device))
    }

    /// Ends a registration.
    pub(crate) fn deregister(&self, registration: Opaque) -> Result<(), Refusal> {
        accepted("deregMr", self.net.calls.deregister(self.raw, registration))
    }

    /// Sends a part, if the plugin can take it now.
    pub(crate) fn isend(&self, part: &Part) -> Result<Option<Opaque>, Refusal> {
        let (result, request) = self.net.calls.isend(self.raw, part);
        accepted("isend", result)?;
        Ok((request != 0).then_some(request))
    }

    /// Receives a group, if the plugin can take it now.
    pub(crate) fn irecv(&self, parts: &[Part]) -> Result<Option<Opaque>, Refusal> {
        self.irecv_over(parts, 0)
    }

    /// Receives a group as `Comm::irecv` does; the request pointer holds `preset` before the call.
    pub(crate) fn irecv_over(
        &self,
        parts: &[Part],
        preset: Opaque,
    ) -> Result<Option<Opaque>, Refusal> {
        let (result, request) = self.net.calls.irecv(self.raw, parts, preset);
        accepted("irecv", result)?;
        Ok((request != 0).then_some(request))
    }

    /// Makes received data visible to a device: returns a request, if there is anything to do.
    pub(crate) fn iflush(&self, parts: &[Part]) -> Result<Option<Opaque>, Refusal> {
        let (result, request) = self.net.calls.iflush(self.raw, parts);
        accepted("iflush", result)?;
        Ok((request != 0).then_some(request))
    }

    /// Reports that the data of a receive of one part was consumed, if the plugin has
    /// `irecvConsumed`.
    pub(crate) fn consumed(&self, request: Opaque) -> Result<(), Refusal> {
        let result = self.net.calls.consumed(self.raw, 1, request);
        result.map_or(Ok(()), |result| accepted("irecvConsumed", result))
    }

    /// Closes the communicator.
    pub(crate) fn close(self) -> Result<(), Refusal> {
        match self.direction {
            Direction::Sends => accepted("closeSend", self.net.calls.close_send(self.raw)),
            Direction::Receives => accepted("closeRecv", self.net.calls.close_receive(self.raw)),
        }
    }
}

/// Returns the refusal of that call unless the result is success.
pub(crate) fn accepted(call: &'static str, result: NcclResult) -> Result<(), Refusal> {
    if result == NcclResult::SUCCESS { Ok(()) } else { Err(Refusal { call, result }) }
}

/// Fails if the call wrote past the end of the handle.
fn canary(call: &str, buffer: &HandleBuffer) -> Outcome {
    match buffer[HANDLE_BYTES..].iter().position(|byte| *byte != CANARY) {
        Some(at) => failed(format!(
            "{call} wrote to byte {} of the handle, which has {HANDLE_BYTES} bytes",
            HANDLE_BYTES + at
        )),
        None => Ok(()),
    }
}
