//! Non-blocking calls. [`Communicator::test`] and [`Communicator::wait`] advance them in the order
//! in which they were started.
//!
//! The communicator owns a request's buffers until [`Communicator::wait`] returns them. A leaked
//! request therefore leaks its buffers and endangers nothing. Requests that borrow their buffers
//! are started in a [`Communicator::scope`].

use std::any::Any;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use bytemuck::{cast_slice, cast_slice_mut};
use ccl_core::types::{Collective, DataType};

use super::call::{Buffers, Call};
use super::element::{Element, Reduction};
use super::engine::{Running, UnbindGuard};
use super::{CallError, Communicator, Error};

/// A started call whose buffers come back with [`Communicator::wait`].
#[derive(Debug)]
#[must_use = "the buffers come back with `wait`"]
pub struct Request<B> {
    id: u64,
    communicator: u64,
    buffers: PhantomData<B>,
}

/// State of a request's call. A call is open until it has ended; at most the oldest open call
/// is started on the engine, the others are queued.
#[derive(Debug)]
enum State {
    Queued(Running),
    Started(Running),
    Ended(Result<(), Cause>),
}

/// Text of the error that ended a call. One error may end many calls, and an [`Error`] cannot be
/// copied.
#[derive(Clone, Debug)]
struct Cause(String);

#[derive(Debug)]
struct Pending {
    id: u64,
    state: State,
    /// The buffers, alive until they are handed back.
    keep: Box<dyn Any + Send>,
}

/// Started calls whose results were not taken yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct Requests {
    queue: VecDeque<Pending>,
    next: u64,
}

/// Input and output of a request, as the caller gave them.
type Apart<T> = (Vec<T>, Vec<T>);

impl Communicator {
    /// Starts [`Communicator::all_reduce`] on owned buffers, which [`Communicator::wait`] returns.
    ///
    /// # Errors
    ///
    /// The errors of the blocking call that can be detected before anything is sent.
    pub fn start_all_reduce<T: Element>(
        &mut self,
        input: Vec<T>,
        output: Vec<T>,
        op: Reduction<T>,
    ) -> Result<Request<Apart<T>>, Error> {
        let call = Call::even(Collective::AllReduce, T::DATA_TYPE, input.len()).reducing(op);
        self.start(&call, input, output)
    }

    /// Starts [`Communicator::all_gather`] on owned buffers, which [`Communicator::wait`] returns.
    ///
    /// # Errors
    ///
    /// The errors of the blocking call that can be detected before anything is sent.
    pub fn start_all_gather<T: Element>(
        &mut self,
        input: Vec<T>,
        output: Vec<T>,
    ) -> Result<Request<Apart<T>>, Error> {
        let call = Call::even(Collective::AllGather, T::DATA_TYPE, input.len());
        self.start(&call, input, output)
    }

    /// Starts [`Communicator::reduce_scatter`] on owned buffers, which [`Communicator::wait`]
    /// returns.
    ///
    /// # Errors
    ///
    /// The errors of the blocking call that can be detected before anything is sent.
    pub fn start_reduce_scatter<T: Element>(
        &mut self,
        input: Vec<T>,
        output: Vec<T>,
        op: Reduction<T>,
    ) -> Result<Request<Apart<T>>, Error> {
        let call = Call::even(Collective::ReduceScatter, T::DATA_TYPE, output.len()).reducing(op);
        self.start(&call, input, output)
    }

    /// Starts any call on owned buffers, which [`Communicator::wait`] returns.
    ///
    /// # Errors
    ///
    /// The errors of the blocking call that can be detected before anything is sent.
    pub fn start<T: Element>(
        &mut self,
        call: &Call<'_>,
        input: Vec<T>,
        mut output: Vec<T>,
    ) -> Result<Request<Apart<T>>, Error> {
        // The vectors' memory stays where it is when they are moved into the queue.
        let buffers = Buffers::apart(cast_slice(&input), cast_slice_mut(&mut output));
        self.enqueue(call, T::DATA_TYPE, buffers, (input, output))
    }

    /// Starts a call, or queues it behind earlier ones. The buffers must live until the call has
    /// ended: either `keep` owns the buffers, or the caller keeps them alive.
    pub(super) fn enqueue<B: Send + 'static>(
        &mut self,
        call: &Call<'_>,
        data_type: DataType,
        buffers: Buffers,
        keep: B,
    ) -> Result<Request<B>, Error> {
        self.usable()?;
        if call.data_type != data_type {
            let Call { collective, data_type: call, .. } = *call;
            return Err(CallError::DataType { collective, call, buffers: data_type }.into());
        }
        let mut running = self.engine.begin(call, buffers)?;
        self.engine.keep(&mut running);
        let id = self.requests.next;
        self.requests.next += 1;
        let keep: Box<dyn Any + Send> = Box::new(keep);
        self.requests.queue.push_back(Pending { id, state: State::Queued(running), keep });
        self.advance_requests()?;
        Ok(Request { id, communicator: self.id, buffers: PhantomData })
    }

    /// Advances the started calls in their order, as far as possible without waiting. Returns
    /// whether the call of `request` has ended.
    ///
    /// # Errors
    ///
    /// The error of a call that fails while this method advances the calls. A request whose call
    /// failed earlier counts as ended; [`Communicator::wait`] returns its error.
    pub fn test<B>(&mut self, request: &Request<B>) -> Result<bool, Error> {
        self.not_forked()?;
        self.check_owner(request)?;
        self.advance_requests()?;
        let pending = self.requests.queue.iter().find(|pending| pending.id == request.id);
        Ok(pending.is_none_or(|pending| matches!(pending.state, State::Ended(_))))
    }

    /// Waits until a call has ended and returns its buffers. Calls that were started earlier end
    /// first. If nothing moves for `timeout`, the communicator breaks, as after any other deadline:
    /// a collective cannot be cancelled on the other ranks. [`Communicator::test`] checks without
    /// that risk.
    ///
    /// # Errors
    ///
    /// When the call, or one that was started before it, failed or did not move for `timeout`; the
    /// buffers then do not come back.
    pub fn wait<B: 'static>(&mut self, request: Request<B>, timeout: Duration) -> Result<B, Error> {
        self.not_forked()?;
        self.check_owner(&request)?;
        while let Some(front) = self.requests.queue.front().map(|pending| pending.id) {
            if front > request.id || self.ended(request.id) {
                break;
            }
            self.finish_front(timeout)?;
        }
        let at = self.requests.queue.iter().position(|pending| pending.id == request.id);
        let pending = at.and_then(|at| self.requests.queue.remove(at));
        let Some(Pending { state: State::Ended(result), keep, .. }) = pending else {
            return Err(CallError::ResultTaken.into());
        };
        result.map_err(|cause| self.ended_badly(cause))?;
        let buffers = keep.downcast::<B>().map_err(|_| CallError::RequestBuffers)?;
        Ok(*buffers)
    }

    fn check_owner<B>(&self, request: &Request<B>) -> Result<(), Error> {
        if request.communicator == self.id {
            return Ok(());
        }
        Err(CallError::ForeignRequest.into())
    }

    /// Drives every started call to its end. A blocking call does this before it runs.
    pub(super) fn drain_requests(&mut self) -> Result<(), Error> {
        let timeout = self.engine.config.timeout;
        while self.first_open().is_some() {
            self.finish_front(timeout)?;
        }
        Ok(())
    }

    /// Returns the number that the next request gets.
    pub(super) fn next_request(&self) -> u64 {
        self.requests.next
    }

    /// Ends every open call with an error, on this rank and on the others.
    pub(super) fn give_up_requests(&mut self, reason: &str) {
        if self.first_open().is_some() {
            if self.control.failure().is_none() {
                self.control.report(self.rank(), reason);
            }
            self.broken.get_or_insert_with(|| reason.to_owned());
            self.end_open(&Cause(reason.to_owned()));
        }
    }

    /// Removes the requests with numbers from `first` on, all of which have ended. Returns the
    /// first of their errors that no wait has returned.
    pub(super) fn take_results_from(&mut self, first: u64) -> Result<(), Error> {
        let mut failed = None;
        self.requests.queue.retain(|pending| {
            if let (true, State::Ended(Err(cause))) = (pending.id >= first, &pending.state) {
                failed.get_or_insert_with(|| cause.clone());
            }
            pending.id < first
        });
        failed.map_or(Ok(()), |cause| Err(self.ended_badly(cause)))
    }

    /// Returns the error of a call that has already ended because of this cause.
    fn ended_badly(&self, Cause(reason): Cause) -> Error {
        match self.is_broken() {
            true => self.broken_before(),
            false => CallError::RequestFailed { reason }.into(),
        }
    }

    /// Returns whether the results of all started calls were taken.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.requests.queue.is_empty()
    }

    fn ended(&self, id: u64) -> bool {
        let pending = self.requests.queue.iter().find(|pending| pending.id == id);
        pending.is_none_or(|pending| matches!(pending.state, State::Ended(_)))
    }

    fn first_open(&self) -> Option<usize> {
        let open = |pending: &Pending| !matches!(pending.state, State::Ended(_));
        self.requests.queue.iter().position(open)
    }

    /// Advances the open calls in their order, as far as possible without waiting. Starts a call
    /// once it is the oldest open one.
    fn advance_requests(&mut self) -> Result<(), Error> {
        while let Some(at) = self.first_open() {
            let running = self.start_pending(at)?;
            let driven = UnbindGuard::new(&mut self.engine);
            let polled = driven.engine.poll(&running);
            // Keeps the guard from unbinding the buffers, which stay bound until the call has
            // ended. Only a panic in `poll` drops the guard.
            std::mem::forget(driven);
            let ended = polled.and_then(|is_done| match is_done {
                true => self.check_may_end(&running).map(|()| true),
                false => Ok(false),
            });
            match ended {
                Ok(true) => self.end(at, Some(&running), Ok(())),
                Ok(false) => {
                    self.requests.queue[at].state = State::Started(running);
                    return Ok(());
                }
                Err(error) => return Err(self.fail(at, &running, error)),
            }
        }
        Ok(())
    }

    /// Drives the oldest open call to its end.
    fn finish_front(&mut self, timeout: Duration) -> Result<(), Error> {
        let Some(at) = self.first_open() else { return Ok(()) };
        let running = self.start_pending(at)?;
        let finished = {
            let driven = UnbindGuard::new(&mut self.engine);
            let finished = driven.engine.finish(&running, timeout);
            finished.inspect_err(|error| driven.engine.blame(error))
        };
        match finished.and_then(|()| self.check_may_end(&running)) {
            Ok(()) => {
                self.end(at, Some(&running), Ok(()));
                Ok(())
            }
            Err(error) => Err(self.fail(at, &running, error)),
        }
    }

    fn start_pending(&mut self, at: usize) -> Result<Running, Error> {
        // This state remains if a panic keeps the caller from setting another one.
        let panicked = "this rank panicked while the call was under way".to_owned();
        let ended = State::Ended(Err(Cause(panicked)));
        match std::mem::replace(&mut self.requests.queue[at].state, ended) {
            State::Queued(running) => match self.engine.start(&running) {
                Ok(()) => Ok(running),
                Err(error) => Err(self.fail(at, &running, error)),
            },
            State::Started(running) => Ok(running),
            State::Ended(result) => {
                self.requests.queue[at].state = State::Ended(result);
                Err(CallError::RequestEnded.into())
            }
        }
    }

    fn end(&mut self, at: usize, running: Option<&Running>, result: Result<(), Cause>) {
        self.engine.ports.unbind();
        if let Some(running) = running {
            self.engine.forget(running);
        }
        self.requests.queue[at].state = State::Ended(result);
    }

    /// Ends all open calls with one error, and breaks the communicator.
    fn fail(&mut self, at: usize, running: &Running, error: Error) -> Error {
        self.engine.blame(&error);
        // The next steps may take a while, and nothing may use the buffers meanwhile.
        self.engine.ports.unbind();
        let during = self.during(&running.what);
        let error = self.broken(error, during);
        let cause = Cause(error.to_string());
        self.end(at, Some(running), Err(cause.clone()));
        self.end_open(&cause);
        error
    }

    fn end_open(&mut self, cause: &Cause) {
        while let Some(open) = self.first_open() {
            self.end(open, None, Err(cause.clone()));
        }
    }
}
