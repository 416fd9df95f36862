//! The ports of an execution on CPU memory: folds are CPU kernels, links are whatever [`Links`]
//! brings messages into memory that this process can read and takes them from memory that it can
//! write.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::admission::Wanted;
use ccl_core::execution::{Link, Message, Operand, Ports, Task};
use ccl_core::types::Rank;
use ccl_memory::Region;

use crate::{Kernel, Term};

/// Slots in reach of load and store.
pub trait Links {
    /// Whether the link's next message has arrived.
    fn readable(&mut self, link: Link) -> bool;
    /// Whether the link has a granted slot for the next message.
    fn writable(&mut self, link: Link) -> bool;
    /// Length and tag of the next message, which has arrived; the length is not yet checked.
    fn head(&mut self, link: Link) -> (usize, u64);
    /// Where the payload of the next message, `bytes` long, lies; null for a link there is not.
    fn received(&mut self, link: Link, bytes: usize) -> *const u8;
    /// Where the payload of the next message to send, `bytes` long, goes; null likewise.
    fn to_send(&mut self, link: Link, bytes: usize) -> *mut u8;
    /// Offers the payload of the next message to send at this address of the call's memory, where
    /// it stays, instead of in its slot. Returns whether that is taken.
    #[inline]
    fn lend(&mut self, _link: Link, _payload: *const u8, _bytes: usize) -> bool {
        false
    }
    /// Whether messages may be on their way from the call's memory.
    #[inline]
    fn lends(&self) -> bool {
        false
    }
    /// These bytes of the call's memory are about to be written: whether no message reads them any
    /// more.
    #[inline]
    fn recall(&mut self, _memory: *const u8, _bytes: usize) -> bool {
        true
    }
    /// Asks for the next message at this address of the call's memory, instead of in its slot.
    #[inline]
    fn land(&mut self, _link: Link, _payload: *mut u8, _bytes: usize) {}
    /// Whether messages can be asked for ahead of time.
    #[inline]
    fn preposts(&self) -> bool {
        false
    }
    /// Whether one more message of the link may be, beyond those that are.
    #[inline]
    fn may_prepost(&mut self, _link: Link) -> bool {
        true
    }
    /// Asks for the link's next message that is not preposted yet in the call's memory; or for
    /// nothing.
    #[inline]
    fn prepost(&mut self, _link: Link, _wanted: Option<Wanted>) {}
    /// The least bytes of a buffer that messages are sent from, or received into.
    #[inline]
    fn lend_bytes_min(&self) -> usize {
        usize::MAX
    }
    /// Names the memory of the call that begins: its buffers of at least so many bytes.
    #[inline]
    fn open(&mut self, _memory: impl Iterator<Item = Region>) {}
    /// Ends every use of the call's memory.
    #[inline]
    fn close(&mut self) {}
    /// Forgets the call's memory, and everything else, without touching it: in a fork's child.
    fn abandon(&mut self) {}
    /// Sends the slot.
    fn publish(&mut self, link: Link, bytes: usize, tag: u64);
    /// Gives the received slot back.
    fn release(&mut self, link: Link);
}

/// A message that is not the one that the schedule expects: the ranks disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Who sent it.
    pub peer: Rank,
    /// Its tag.
    pub tag: u64,
    /// The tag of our own call.
    pub own_tag: u64,
    /// Its length, in bytes.
    pub bytes: usize,
    /// The length that was expected.
    pub expected_bytes: usize,
}

/// The memory and arithmetic of one call.
#[derive(Clone, Copy, Debug)]
pub struct CallMemory {
    /// Exposed addresses: operands of a group lie in many buffers, at offsets from address 0.
    input: usize,
    output: usize,
    scratch: usize,
    kernel: Kernel,
    /// Names the call: equal on all ranks that make the same call at the same point; 0 to compare
    /// nothing.
    tag: u64,
}

impl CallMemory {
    /// Memory for one call.
    ///
    /// # Safety
    ///
    /// Until the last fold of the call: `input`, `output` and `scratch` are valid for all bytes
    /// that the bound program touches (reads of input and output, writes of output and scratch),
    /// input and output are the same range exactly as the in-place form says or disjoint, and
    /// nobody else writes them or reads what is written.
    #[must_use]
    pub unsafe fn new(
        input: *const u8,
        output: *mut u8,
        scratch: *mut u8,
        kernel: Kernel,
        tag: u64,
    ) -> CallMemory {
        let (input, output) = (input.expose_provenance(), output.expose_provenance());
        CallMemory { input, output, scratch: scratch.expose_provenance(), kernel, tag }
    }

    /// Memory for a group of messages in many buffers: the program's layouts begin at *addresses*,
    /// which the caller has exposed (`expose_provenance`).
    ///
    /// # Safety
    ///
    /// As [`CallMemory::new`], for every range that the layouts name.
    #[must_use]
    pub unsafe fn absolute(kernel: Kernel, tag: u64) -> CallMemory {
        CallMemory { input: 0, output: 0, scratch: 0, kernel, tag }
    }

    /// What a message of this call carries: the call's tag, and in its lower half the length of the
    /// whole, so that ends which agree only on the first pieces notice. 0 compares nothing.
    #[inline]
    fn tag_of(&self, message: Message) -> u64 {
        if self.tag == 0 {
            return 0;
        }
        self.tag ^ (message.whole_bytes as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }

    /// Where a task's result stays until the call has ended, or something else is written there:
    /// in the caller's buffers. `terms` are what is combined.
    #[inline]
    fn stays(&self, task: &Task<'_>, terms: &[Term]) -> Option<*const u8> {
        let output = task.targets.iter().find(|target| matches!(target, Operand::Output(_)));
        if let Some(output) = output {
            return Some(self.memory(*output, task));
        }
        match (task.sources, terms) {
            ([Operand::Input(_) | Operand::Output(_)], [only])
                if self.kernel.copies(*only, task.last) =>
            {
                Some(only.data())
            }
            _ => None,
        }
    }

    /// Where a task moves its message to, if it changes nothing of it.
    #[inline]
    fn arrives_at(&self, task: &Task<'_>) -> Option<*mut u8> {
        let output = task.targets.iter().find(|target| matches!(target, Operand::Output(_)))?;
        let as_it_is = self.kernel.copies(Term::new(std::ptr::null()), task.last);
        as_it_is.then(|| self.memory(*output, task))
    }

    /// The address of an operand outside slots.
    #[inline]
    fn memory(&self, operand: Operand, task: &Task<'_>) -> *mut u8 {
        let address = match operand {
            Operand::Input(at) => self.input + at + task.piece_offset,
            Operand::Output(at) => self.output + at + task.piece_offset,
            Operand::Scratch(at) => self.scratch + at + task.scratch_offset,
            Operand::Slot(_) => 0,
        };
        std::ptr::with_exposed_provenance_mut(address)
    }
}

/// Ports on CPU memory.
#[derive(Debug)]
pub struct CpuPorts<L> {
    links: L,
    call: Option<CallMemory>,
    mismatch: Option<Mismatch>,
    terms: Vec<Term>,
    targets: Vec<*mut u8>,
    /// Of regions over the call's buffers, which nobody owns.
    owner: Arc<()>,
}

// SAFETY: the pointers in `terms` and `targets` are dead between folds; those of the call are
// addresses whose constructor's contract holds on whatever thread drives it, one at a time.
unsafe impl<L: Send> Send for CpuPorts<L> {}

impl<L: Links> CpuPorts<L> {
    /// Ports of a rank among `ranks` over these links.
    #[must_use]
    pub fn new(links: L, ranks: usize) -> CpuPorts<L> {
        let terms = Vec::with_capacity(ranks + 1);
        CpuPorts {
            links,
            call: None,
            mismatch: None,
            terms,
            targets: Vec::with_capacity(ranks + 1),
            owner: Arc::new(()),
        }
    }

    /// Sets the memory of the call that is executed next.
    pub fn bind(&mut self, call: CallMemory) {
        self.links.close();
        self.call = Some(call);
        self.mismatch = None;
    }

    /// Lets links send from the buffers of the call that was just set, and receive into them.
    ///
    /// # Safety
    ///
    /// Until [`CpuPorts::unbind`] has returned, or the ports are dropped, each buffer (an exposed
    /// address and a length in bytes) is valid for reads, and for writes if the call's program
    /// writes any of it; nobody else writes it, or reads what the program writes.
    pub unsafe fn lend(&mut self, buffers: impl Iterator<Item = (usize, usize)>) {
        let (owner, least) = (&self.owner, self.links.lend_bytes_min());
        let buffers = buffers.filter(|(_, bytes)| *bytes >= least);
        self.links.open(buffers.filter_map(|(address, bytes)| {
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address))?;
            let owner: Arc<dyn Any + Send + Sync> = Arc::<()>::clone(owner);
            // SAFETY: the caller's promise. Nobody owns the memory; instead `close` ends every use
            // of the region before the caller has its buffers back. It is written where the
            // program asks for a message and nowhere else, so never in a buffer that is only read.
            Some(unsafe { Region::new(start, bytes, owner) })
        }));
    }

    /// In the child of a fork, where links and memory are the parent's: nothing is touched or sent
    /// any more, not even to take leave.
    pub fn abandon(&mut self) {
        self.call = None;
        self.links.abandon();
    }

    /// Forgets the call's memory: nothing is touched until the next [`CpuPorts::bind`].
    pub fn unbind(&mut self) {
        self.call = None;
        self.links.close();
    }

    /// The first message that was not what the schedule expects. Nothing moves after it.
    #[must_use]
    pub fn mismatch(&self) -> Option<Mismatch> {
        self.mismatch
    }

    /// The links, for other ports.
    #[must_use]
    pub fn into_links(self) -> L {
        self.links
    }

    /// The links, to be read.
    #[must_use]
    pub fn view(&self) -> &L {
        &self.links
    }

    /// The links.
    pub fn links(&mut self) -> &mut L {
        &mut self.links
    }
}

impl<L: Links> Ports for CpuPorts<L> {
    #[inline]
    fn readable(&mut self, link: Link) -> bool {
        self.links.readable(link)
    }

    #[inline]
    fn writable(&mut self, link: Link) -> bool {
        self.links.writable(link)
    }

    #[inline]
    fn expect(&mut self, link: Link, task: &Task<'_>) {
        let Some(call) = &self.call else { return };
        if let Some(output) = call.arrives_at(task) {
            self.links.land(link, output, task.message_bytes);
        }
    }

    #[inline]
    fn preposts(&self) -> bool {
        self.links.preposts()
    }

    fn may_prepost(&mut self, link: Link) -> bool {
        self.links.may_prepost(link)
    }

    fn prepost(&mut self, link: Link, task: Option<(&Task<'_>, Message)>) {
        let wanted = self.call.as_ref().zip(task).and_then(|(call, (task, message))| {
            let address = call.arrives_at(task)?.expose_provenance();
            Some(Wanted { address, bytes: task.message_bytes, tag: call.tag_of(message) })
        });
        self.links.prepost(link, wanted);
    }

    #[inline]
    fn lends(&self) -> bool {
        self.links.lends()
    }

    fn settled(&mut self, task: &Task<'_>) -> bool {
        let Some(call) = &self.call else { return true };
        let bytes = task.elements * call.kernel.element_bytes();
        task.targets.iter().all(|target| match target {
            Operand::Slot(_) => true,
            memory => self.links.recall(call.memory(*memory, task), bytes),
        })
    }

    #[inline]
    fn accept(&mut self, link: Link, message: Message) -> bool {
        let Some(call) = &self.call else { return false };
        let (expected_bytes, own_tag) = (message.bytes, call.tag_of(message));
        let (bytes, tag) = self.links.head(link);
        if bytes == expected_bytes && tag == own_tag {
            return true;
        }
        self.mismatch = Some(Mismatch { peer: link.peer, tag, own_tag, bytes, expected_bytes });
        false
    }

    #[inline]
    fn fold(&mut self, task: &Task<'_>) {
        let Some(call) = &self.call else { return };
        self.terms.clear();
        self.targets.clear();
        for source in task.sources {
            let term = match *source {
                Operand::Slot(peer) => {
                    let link = Link { peer, channel: task.channel };
                    let payload = self.links.received(link, task.message_bytes);
                    Term::new(payload.wrapping_add(task.slot_offset))
                }
                Operand::Input(_) => Term::scaled(call.memory(*source, task)),
                memory => Term::new(call.memory(memory, task)),
            };
            self.terms.push(term);
        }
        let message = task.elements * call.kernel.element_bytes() == task.message_bytes;
        let stays = if message { call.stays(task, &self.terms) } else { None };
        for target in task.targets {
            self.targets.push(match *target {
                Operand::Slot(peer) => {
                    let link = Link { peer, channel: task.channel };
                    if stays.is_some_and(|at| self.links.lend(link, at, task.message_bytes)) {
                        continue;
                    }
                    let payload = self.links.to_send(link, task.message_bytes);
                    payload.wrapping_add(task.slot_offset)
                }
                memory => call.memory(memory, task),
            });
        }
        // SAFETY: `CallMemory::new` vouches for the caller's buffers and scratch; slots are
        // readable (their length was checked by `accept`) or writable, as the execution found,
        // and hold `message_bytes`, of which this task is a part. The verifier proves for every
        // schedule that targets are disjoint from sources but for exact equality.
        unsafe { call.kernel.fold(&self.targets, &self.terms, task.elements, task.last) }
    }

    #[inline]
    fn publish(&mut self, link: Link, message: Message) {
        let tag = self.call.map_or(0, |call| call.tag_of(message));
        self.links.publish(link, message.bytes, tag);
    }

    #[inline]
    fn release(&mut self, link: Link) {
        self.links.release(link);
    }
}
