//! The ports of an execution on CPU memory: folds are CPU kernels over slots and over the caller's
//! memory.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::admission::{MessageLinks, Placement};
use ccl_core::execution::{Link, Message, Operand, Ports, Task};
use ccl_core::types::Rank;
use ccl_memory::Region;

use ccl_kernels_cpu::{Kernel, Term};

use crate::Links;

/// A message that differs from the message that the schedule expects: the ranks disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Rank of the sender.
    pub peer: Rank,
    /// Tag of the message.
    pub tag: u64,
    /// Tag of this rank's call.
    pub own_tag: u64,
    /// Length of the message, in bytes.
    pub bytes: usize,
    /// Length that was expected, in bytes.
    pub expected_bytes: usize,
}

/// The memory and arithmetic of one call.
#[derive(Clone, Copy, Debug)]
pub struct CallMemory {
    /// Exposed address of the input; `output` and `scratch` are exposed addresses, too. For a
    /// group of messages (sends and receives that move side by side), operands lie in many buffers:
    /// the offset of each operand is its address, and all three fields are 0.
    input: usize,
    output: usize,
    scratch: usize,
    kernel: Kernel,
    /// Tag that names the call: equal on all ranks that make the same call at the same point; 0 to
    /// compare nothing.
    tag: u64,
}

impl CallMemory {
    /// Makes the memory of one call.
    ///
    /// # Safety
    ///
    /// Until the last fold of the call:
    ///
    /// * All bytes that the bound program touches are valid: those of `input` and `output` for
    ///   reads, those of `output` and `scratch` for writes.
    /// * Input and output are disjoint, or overlap exactly as in the collective's in-place form
    ///   ([`ccl_core::lower::Alias::of`]).
    /// * Nobody else writes these bytes, or reads bytes that the program writes.
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

    /// Makes the memory of a group of messages in many buffers. The program's layouts have
    /// *addresses* instead of offsets; the caller has exposed them (`expose_provenance`).
    ///
    /// # Safety
    ///
    /// The contract of [`CallMemory::new`] holds for every range that the layouts name.
    #[must_use]
    pub unsafe fn absolute(kernel: Kernel, tag: u64) -> CallMemory {
        CallMemory { input: 0, output: 0, scratch: 0, kernel, tag }
    }

    /// Returns the tag of a message of this call: the call's tag, with a hash of the op's whole
    /// length XORed into its lower half. So tags differ if the ranks' lengths differ, even if
    /// their first chunks have the same length. If the call's tag is 0, returns 0: nothing is
    /// compared.
    #[inline]
    fn tag_of(&self, message: Message) -> u64 {
        if self.tag == 0 {
            return 0;
        }
        self.tag ^ (message.whole_bytes as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }

    /// Returns the address at which a task's result lies in the caller's buffers; none if the
    /// result lies elsewhere. The result stays there until the call ends or overwrites it. `terms`
    /// are the operands that the task combines.
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

    /// Returns the address in the output to which a task moves the message that the task reads;
    /// none if the task changes the message, or has no target in the output.
    #[inline]
    fn arrives_at(&self, task: &Task<'_>) -> Option<*mut u8> {
        let output = task.targets.iter().find(|target| matches!(target, Operand::Output(_)))?;
        let as_it_is = self.kernel.copies(Term::new(std::ptr::null()), task.last);
        as_it_is.then(|| self.memory(*output, task))
    }

    /// Returns the address of an operand outside slots.
    #[inline]
    fn memory(&self, operand: Operand, task: &Task<'_>) -> *mut u8 {
        let address = match operand {
            Operand::Input(at) => self.input + at + task.chunk_offset,
            Operand::Output(at) => self.output + at + task.chunk_offset,
            Operand::Scratch(at) => self.scratch + at + task.scratch_offset,
            Operand::Slot(_) => 0,
        };
        std::ptr::with_exposed_provenance_mut(address)
    }
}

/// Ports on CPU memory.
#[derive(Debug)]
pub struct CpuPorts {
    links: Links,
    call: Option<CallMemory>,
    mismatch: Option<Mismatch>,
    terms: Vec<Term>,
    targets: Vec<*mut u8>,
    /// Placeholder owner of regions over the call's buffers.
    owner: Arc<()>,
}

// SAFETY: the pointers in `terms` and `targets` are dead between folds. The call has addresses
// instead of pointers. The contract of `CallMemory::new` is not bound to a thread: it holds on any
// thread that has the ports, and only one has them at a time.
unsafe impl Send for CpuPorts {}

impl CpuPorts {
    /// Makes the ports of a rank among `ranks` over these links.
    #[must_use]
    pub fn new(links: Links, ranks: usize) -> CpuPorts {
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
        self.close();
        self.call = Some(call);
        self.mismatch = None;
    }

    /// Lets links send from the buffers of the call that was just set, and receive into them.
    ///
    /// # Safety
    ///
    /// A buffer is an exposed address and a length in bytes. Until [`CpuPorts::unbind`] has
    /// returned, or the ports are dropped, each buffer is valid for reads, and also for writes if
    /// the call's program writes to it. Until then, nobody else writes to the buffer, or reads what
    /// the program writes.
    pub unsafe fn open(&mut self, buffers: impl Iterator<Item = (usize, usize)>) {
        let Some(messages) = self.links.messages() else { return };
        let (owner, least) = (&self.owner, messages.zero_copy_bytes_min());
        let buffers = buffers.filter(|(_, bytes)| *bytes >= least);
        messages.open(buffers.filter_map(|(address, bytes)| {
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address))?;
            let owner: Arc<dyn Any + Send + Sync> = Arc::<()>::clone(owner);
            // SAFETY: the caller's promise. `owner` is a placeholder that does not keep the memory
            // alive: `close` ends every use of the region before the caller has its buffers back.
            // The region is written only where the program receives a message, so never in a
            // buffer that is only read.
            Some(unsafe { Region::new(start, bytes, owner) })
        }));
    }

    /// Stops the ports in the child of a fork, where links and memory belong to the parent: nothing
    /// is touched or sent any more, not even a farewell.
    pub fn abandon(&mut self) {
        self.call = None;
        if let Some(messages) = self.links.messages() {
            messages.abandon();
        }
    }

    /// Forgets the call's memory: nothing is touched until the next [`CpuPorts::bind`].
    pub fn unbind(&mut self) {
        self.call = None;
        self.close();
    }

    /// Ends every use of the call's memory.
    fn close(&mut self) {
        if let Some(messages) = self.links.messages() {
            messages.close();
        }
    }

    /// Returns the first message that the schedule did not expect. No data moves after it.
    #[must_use]
    pub fn mismatch(&self) -> Option<Mismatch> {
        self.mismatch
    }

    /// Returns the links, so that other ports can be made over them.
    #[must_use]
    pub fn into_links(self) -> Links {
        self.links
    }

    /// Returns the links for reading.
    #[must_use]
    pub fn view(&self) -> &Links {
        &self.links
    }

    /// Returns the links, mutably.
    pub fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Ports for CpuPorts {
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
        let (Some(call), Some(messages)) = (&self.call, self.links.messages_of(link)) else {
            return;
        };
        if let Some(output) = call.arrives_at(task) {
            messages.receive_into(link, output.expose_provenance(), task.message_bytes);
        }
    }

    #[inline]
    fn preposts(&self) -> bool {
        self.links.view().is_some_and(MessageLinks::preposts)
    }

    fn may_prepost(&mut self, link: Link) -> bool {
        self.links.messages_of(link).is_none_or(|messages| messages.may_prepost(link))
    }

    fn prepost(&mut self, link: Link, task: Option<(&Task<'_>, Message)>) {
        let Some(messages) = self.links.messages_of(link) else { return };
        let placement = self.call.as_ref().zip(task).and_then(|(call, (task, message))| {
            let address = call.arrives_at(task)?.expose_provenance();
            Some(Placement { address, bytes: task.message_bytes, tag: call.tag_of(message) })
        });
        messages.prepost(link, placement);
    }

    #[inline]
    fn has_zero_copy_sends(&self) -> bool {
        self.links.view().is_some_and(MessageLinks::has_zero_copy_sends)
    }

    fn reclaim(&mut self, task: &Task<'_>) -> bool {
        let (Some(call), Some(messages)) = (&self.call, self.links.messages()) else {
            return true;
        };
        let bytes = task.elements * call.kernel.element_bytes();
        task.targets.iter().all(|target| match target {
            Operand::Slot(_) => true,
            memory => messages.reclaim(call.memory(*memory, task).addr(), bytes),
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

    // Inlined at both call sites: a call would take a twentieth of the time of a small message.
    #[inline(always)]
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
        // If this task writes the whole message, the caller's buffer can be sent instead of a slot.
        let is_whole = task.elements * call.kernel.element_bytes() == task.message_bytes;
        let may_send = |messages: &MessageLinks| messages.may_send_from(task.message_bytes);
        let stays = match is_whole && self.links.view().is_some_and(may_send) {
            true => call.stays(task, &self.terms),
            false => None,
        };
        for target in task.targets {
            self.targets.push(match *target {
                Operand::Slot(peer) => {
                    let link = Link { peer, channel: task.channel };
                    if let Some(at) = stays
                        && let Some(messages) = self.links.messages_of(link)
                        && messages.send_from(link, at.addr(), task.message_bytes)
                    {
                        continue;
                    }
                    let payload = self.links.to_send(link, task.message_bytes);
                    payload.wrapping_add(task.slot_offset)
                }
                memory => call.memory(memory, task),
            });
        }
        // SAFETY: the contract of `CallMemory::new` covers the caller's buffers and scratch. The
        // execution has found each slot readable (`accept` has checked the message's length) or
        // writable. A slot holds `message_bytes` bytes, and this task covers a part of them. The
        // verifier proves for every schedule that a target and a source are either disjoint or
        // equal.
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
