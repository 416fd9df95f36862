//! Offers of providers: an offer is an `fi_info`, which describes an endpoint and its features.

use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};

use libc::{ENODATA, c_char, c_int};
use libfabric_sys::{
    FI_API_VERSION, FI_BUS_PCI, FI_CONTEXT, FI_CONTEXT2, FI_EP_RDM, FI_HMEM, FI_MR_ALLOCATED,
    FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MSG,
    FI_REMOTE_COMM, FI_RMA, FI_TC_LOW_LATENCY, FI_TC_UNSPEC, FI_THREAD_SAFE, FI_VERSION, Functions,
    fi_domain_attr, fi_ep_attr, fi_info, fi_pci_attr, fi_tx_attr,
};

use super::{OfiError, check, shm};

/// Provider of AWS's adapters.
pub(crate) const EFA: &str = "efa";

/// First version of the interface for which EFA's provider by default uses RDMA on every adapter
/// that has it. For a program written for an earlier version, the default is RDMA only on newer
/// adapters.
const EFA_API_VERSION: u32 = FI_VERSION(1, 18);

/// First version of the interface that has `FI_MR_DMABUF`.
const DMABUF_API_VERSION: u32 = FI_VERSION(1, 20);

/// Demands of providers on registered memory (`mr_mode`) that this crate meets.
const MR_MODES: c_int =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_HMEM;

/// Demands on an offer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hints<'a> {
    /// Name of the provider to ask; none to ask all providers.
    pub(crate) provider: Option<&'a str>,
    /// Capabilities to ask for.
    pub(crate) caps: u64,
    /// True to ask for the low-latency traffic class; offers may lack it all the same.
    pub(crate) low_latency: bool,
}

/// Offer of a provider.
#[derive(Debug)]
pub(crate) struct Info {
    pub(super) functions: &'static Functions,
    raw: NonNull<fi_info>,
}

// SAFETY: nobody else has the offer, and the library does not tie an offer to a thread.
unsafe impl Send for Info {}
// SAFETY: shared references only read.
unsafe impl Sync for Info {}

impl Info {
    /// Lists the offers of reliable datagram endpoints that meet the hints, the library's preferred
    /// one first; none if no provider meets them.
    pub(crate) fn list(
        functions: &'static Functions,
        hints: &Hints<'_>,
    ) -> Result<Vec<Info>, OfiError> {
        let version = match hints.provider {
            Some(EFA) => version_of(functions).min(EFA_API_VERSION),
            _ => FI_API_VERSION,
        };
        Info::list_for(functions, hints, version)
    }

    /// Lists the offers to a program that is written for this version of the interface. Before
    /// asking for `shm`, removes the memory that ended processes have left in `/dev/shm`.
    fn list_for(
        functions: &'static Functions,
        hints: &Hints<'_>,
        version: u32,
    ) -> Result<Vec<Info>, OfiError> {
        if hints.provider.is_none_or(|name| name == shm::PROVIDER) {
            // If /dev/shm is too full, `shm` offers nothing.
            shm::remove_leftovers();
        }
        let mut demands = Info::empty(functions)?;
        demands.demand(hints)?;
        let mut first: *mut fi_info = ptr::null_mut();
        let (node, service) = (ptr::null(), ptr::null());
        // SAFETY: the hints are whole, and `first` has room for the pointer to the list.
        let returned = unsafe {
            let into = &raw mut first;
            (functions.getinfo)(version, node, service, 0, demands.raw.as_ptr(), into)
        };
        if returned == -ENODATA {
            return Ok(Vec::new());
        }
        check(functions, "fi_getinfo", returned)?;
        let mut all = Vec::new();
        let mut next = first;
        while let Some(offer) = NonNull::new(next) {
            // SAFETY: the list is whole.
            let copy = unsafe { (functions.dupinfo)(offer.as_ptr()) };
            all.extend(NonNull::new(copy).map(|raw| Info { functions, raw }));
            // SAFETY: the list is whole.
            next = unsafe { (*offer.as_ptr()).next };
        }
        // SAFETY: the list is this function's own, and nothing points into it.
        unsafe { (functions.freeinfo)(first) };
        Ok(all)
    }

    /// Returns the offers of a provider, and of layers above it, that can carry puts. With
    /// `device_memory`, the offers move the memory of accelerators, unless the provider has no such
    /// offers.
    pub(crate) fn offers(
        functions: &'static Functions,
        provider: &str,
        device_memory: bool,
    ) -> Result<Vec<Info>, OfiError> {
        // EFA hands traffic within a host to another provider unless only remote peers are asked
        // for.
        let reach = if provider == EFA { FI_REMOTE_COMM } else { 0 };
        let mut offers = Vec::new();
        // Some providers cannot write, and others offer writes only if asked for them. If asked for
        // a traffic class that it lacks, a provider may offer nothing, or leave the class out.
        let (write, send) = (FI_MSG | FI_RMA | reach, FI_MSG | reach);
        let demands = [(write, true), (write, false), (send, false)];
        let with_device_memory = demands.map(|(caps, low_latency)| (caps | FI_HMEM, low_latency));
        let first = if device_memory { &with_device_memory[..] } else { &[] };
        for &(caps, low_latency) in first.iter().chain(&demands) {
            let hints = Hints { provider: Some(provider), caps, low_latency };
            if offers.is_empty() {
                offers = Info::list(functions, &hints)?;
            }
        }
        // A put that is a write needs two things that `efa-direct` lacks: writes with data that use
        // up no receive of the peer, and `FI_DELIVERY_COMPLETE`.
        offers.retain(|info| info.fabric() != "efa-direct");
        Ok(offers)
    }

    /// Returns a provider's offer to a program that may register DMA-bufs; none if the library or
    /// the provider is too old for them, or the provider does not move the memory of accelerators.
    pub(crate) fn for_dma_bufs(
        functions: &'static Functions,
        provider: &str,
    ) -> Result<Option<Info>, OfiError> {
        if version_of(functions) < DMABUF_API_VERSION {
            return Ok(None);
        }
        let hints = Hints { provider: Some(provider), caps: FI_MSG | FI_HMEM, low_latency: false };
        let offers = Info::list_for(functions, &hints, DMABUF_API_VERSION)?;
        Ok(offers.into_iter().find(|offer| offer.provider() == provider))
    }

    fn empty(functions: &'static Functions) -> Result<Info, OfiError> {
        // SAFETY: for a null pointer, `fi_dupinfo` returns an empty offer that has all its
        // attributes.
        let raw = unsafe { (functions.dupinfo)(ptr::null()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Info { functions, raw }),
            None => {
                let reason = "there is no memory".to_owned();
                Err(OfiError::Call { call: "fi_allocinfo", code: libc::ENOMEM, reason })
            }
        }
    }

    fn demand(&mut self, hints: &Hints<'_>) -> Result<(), OfiError> {
        let name = hints.provider.map(CString::new).transpose();
        let name = name.map_err(|_| OfiError::Call {
            call: "fi_getinfo",
            code: libc::EINVAL,
            reason: "the name of a provider must not contain zero bytes".to_owned(),
        })?;
        // SAFETY: the offer is whole, and nobody else has it.
        let info = unsafe { &mut *self.raw.as_ptr() };
        info.caps = hints.caps;
        // `FI_RX_CQ_DATA` is left out: with this mode, each write with data would take a receive,
        // and no receives are posted for writes.
        info.mode = FI_CONTEXT | FI_CONTEXT2;
        // SAFETY: the library has made all attributes.
        unsafe { &mut *info.ep_attr }.r#type = FI_EP_RDM;
        // SAFETY: as above.
        let domain = unsafe { &mut *info.domain_attr };
        (domain.mr_mode, domain.threading) = (MR_MODES, FI_THREAD_SAFE);
        if hints.low_latency {
            // SAFETY: as above.
            unsafe { &mut *info.tx_attr }.tclass = FI_TC_LOW_LATENCY;
        }
        if let Some(name) = name {
            // SAFETY: as above.
            let fabric = unsafe { &mut *info.fabric_attr };
            // SAFETY: the name ends with a zero. The library frees the copy with the offer.
            fabric.prov_name = unsafe { libc::strdup(name.as_ptr()) };
        }
        Ok(())
    }

    /// Limits the requests, and the receives, that an endpoint has at once.
    pub(super) fn limit_queues(&mut self, most: usize) {
        // SAFETY: the offer is whole, and nobody else has it.
        let info = unsafe { self.raw.as_mut() };
        // SAFETY: every offer has all attributes.
        let sending = unsafe { &mut *info.tx_attr };
        sending.size = sending.size.min(most);
        // SAFETY: as above.
        let receiving = unsafe { &mut *info.rx_attr };
        receiving.size = receiving.size.min(most);
    }

    /// Returns whether endpoints of this offer can send in the low-latency traffic class. EFA's
    /// provider has it since libfabric 2.0, but does not report it before 2.7.
    pub(crate) fn has_low_latency(&self) -> bool {
        let (major, _) = self.version();
        self.sending().tclass == FI_TC_LOW_LATENCY || (self.provider() == EFA && major >= 200)
    }

    /// Takes the low-latency traffic class out of the offer. Returns a copy with that class, if the
    /// offer can have it.
    pub(super) fn take_low_latency(&mut self) -> Option<Info> {
        if !self.has_low_latency() {
            return None;
        }
        // SAFETY: the offer is whole.
        let copy = unsafe { (self.functions.dupinfo)(self.raw.as_ptr()) };
        let copy = NonNull::new(copy).map(|raw| Info { functions: self.functions, raw });
        self.set_class(FI_TC_UNSPEC);
        copy.map(|mut copy| {
            copy.set_class(FI_TC_LOW_LATENCY);
            copy
        })
    }

    fn set_class(&mut self, class: u32) {
        // SAFETY: the offer is whole, and nobody else has it.
        let info = unsafe { self.raw.as_mut() };
        // SAFETY: every offer has all attributes.
        unsafe { &mut *info.tx_attr }.tclass = class;
    }

    pub(super) fn raw(&self) -> *mut fi_info {
        self.raw.as_ptr()
    }

    pub(crate) fn info(&self) -> &fi_info {
        // SAFETY: the offer is whole for as long as `self` lives.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn domain(&self) -> &fi_domain_attr {
        // SAFETY: every offer has all attributes.
        unsafe { &*self.info().domain_attr }
    }

    pub(crate) fn endpoint(&self) -> &fi_ep_attr {
        // SAFETY: every offer has all attributes.
        unsafe { &*self.info().ep_attr }
    }

    pub(crate) fn sending(&self) -> &fi_tx_attr {
        // SAFETY: every offer has all attributes.
        unsafe { &*self.info().tx_attr }
    }

    /// Returns the provider's name, such as `tcp;ofi_rxm`.
    pub(crate) fn provider(&self) -> String {
        // SAFETY: every offer has all attributes.
        text(unsafe { (*self.info().fabric_attr).prov_name })
    }

    /// Returns the name of the fabric, such as `efa`.
    pub(crate) fn fabric(&self) -> String {
        // SAFETY: every offer has all attributes.
        text(unsafe { (*self.info().fabric_attr).name })
    }

    /// Returns the provider's version.
    pub(crate) fn version(&self) -> (u32, u32) {
        // SAFETY: every offer has all attributes.
        let version = unsafe { (*self.info().fabric_attr).prov_version };
        (version >> 16, version & 0xffff)
    }

    /// Returns the name of the device or interface.
    pub(crate) fn device(&self) -> String {
        text(self.domain().name)
    }

    /// Returns the speed of the link, if the link reports it.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        // SAFETY: the library has set the pointer: it is null, or valid as long as the offer.
        let nic = unsafe { self.info().nic.as_ref() }?;
        // SAFETY: as above.
        let link = unsafe { nic.link_attr.as_ref() }?;
        (link.speed > 0).then(|| link.speed as f64 / 8.0)
    }

    /// Returns the address of the device's PCI function in the format of sysfs: `0000:31:00.0`.
    pub(crate) fn pci_address(&self) -> Option<String> {
        // SAFETY: the library has set the pointer: it is null, or valid as long as the offer.
        let nic = unsafe { self.info().nic.as_ref() }?;
        // SAFETY: as above.
        let bus = unsafe { nic.bus_attr.as_ref() }?;
        let fi_pci_attr { domain_id, bus_id, device_id, function_id } = bus.pci;
        (bus.bus_type == FI_BUS_PCI)
            .then(|| format!("{domain_id:04x}:{bus_id:02x}:{device_id:02x}.{function_id:x}"))
    }

    /// Returns whether the provider is EFA's. Its writes suit puts: its device checks the key of
    /// each packet, and the peer's completion has the length. With other providers, the completion
    /// may lack the length, and a write under way may go on after its target was deregistered: with
    /// software providers the rest of the write still arrives in that memory, and with `verbs` it
    /// may arrive, since that provider caches registrations.
    ///
    /// Also, EFA's provider completes a message only when the peer's provider has delivered it, if
    /// it is asked to (`FI_DELIVERY_COMPLETE`); many others take the flag and ignore it.
    pub(crate) fn is_efa(&self) -> bool {
        self.provider() == EFA
    }

    /// Returns whether the provider is `ofi_rxm` above `tcp`. Only there, the connections of an
    /// endpoint share their receives by default.
    pub(super) fn is_rxm_over_tcp(&self) -> bool {
        self.provider() == "tcp;ofi_rxm"
    }

    pub(crate) fn has(&self, caps: u64) -> bool {
        self.info().caps & caps == caps
    }

    pub(crate) fn registers(&self, mode: c_int) -> bool {
        self.domain().mr_mode & mode != 0
    }
}

/// Returns the version of the interface that the library has.
fn version_of(functions: &Functions) -> u32 {
    // SAFETY: the function takes nothing.
    unsafe { (functions.version)() }
}

/// Copies a string of the library; empty if there is none.
fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: texts of offers end with a zero, and live as long as their offers.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { (self.functions.freeinfo)(self.raw.as_ptr()) };
    }
}
