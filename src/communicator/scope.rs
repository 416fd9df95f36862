//! Non-blocking calls on borrowed buffers. All calls end before the scope does, so that no call
//! outlives its buffers, even if its request is leaked.

use std::marker::PhantomData;
use std::time::Duration;

use bytemuck::{cast_slice, cast_slice_mut};
use ccl_core::types::Collective;

use super::call::{Buffers, Call};
use super::element::{Element, Reduction};
use super::request::Request;
use super::{Communicator, Error};

/// Scope that starts calls whose buffers live for `'env`; made by [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env> {
    communicator: &'scope mut Communicator,
    env: PhantomData<&'env mut &'env ()>,
}

/// Guard that ends the scope's calls if the closure panics. Without a panic, all calls have ended
/// before the guard is dropped, except in a forked child.
struct Unwinding<'c>(&'c mut Communicator);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        // Nothing advances these calls any more, and the other ranks wait.
        if self.0.not_forked().is_ok() {
            self.0.give_up_requests("this rank panicked while the call was under way");
        }
    }
}

impl Communicator {
    /// Runs `body`, which may start calls on borrowed buffers. All these calls end before `scope`
    /// returns.
    ///
    /// ```
    /// # fn main() -> Result<(), ferroccl::Error> {
    /// # use ferroccl::{Communicator, Reduction};
    /// let mut communicator = Communicator::from_environment()?;
    /// let (mut early, mut late) = ([1.0f32; 1000], [2.0f32; 500]);
    /// communicator.scope(|scope| {
    ///     scope.start_all_reduce_in_place(&mut early, Reduction::Sum)?;
    ///     // … compute what goes into the next bucket …
    ///     scope.start_all_reduce_in_place(&mut late, Reduction::Sum)
    /// })??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Borrowed buffers cannot be used before `scope` returns:
    ///
    /// ```compile_fail,E0506
    /// # use ferroccl::{Communicator, Error, Reduction};
    /// fn race(communicator: &mut Communicator) -> Result<(), Error> {
    ///     let mut buffer = [1.0f32; 1000];
    ///     communicator.scope(|scope| {
    ///         let request = scope.start_all_reduce_in_place(&mut buffer, Reduction::Sum)?;
    ///         buffer[0] = 2.0;
    ///         drop(request);
    ///         Ok(())
    ///     })?
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// When a call that the scope started, or one that was in progress before, fails.
    pub fn scope<'env, R>(
        &mut self,
        body: impl FnOnce(&mut Scope<'_, 'env>) -> R,
    ) -> Result<R, Error> {
        let first = self.next_request();
        let unwinding = Unwinding(self);
        let result = body(&mut Scope { communicator: unwinding.0, env: PhantomData });
        // If the closure forks, the child gets here, too.
        unwinding.0.not_forked()?;
        unwinding.0.drain_requests()?;
        unwinding.0.take_results_from(first).map(|()| result)
    }
}

impl<'env> Scope<'_, 'env> {
    /// Starts any call out of place.
    ///
    /// # Errors
    ///
    /// The errors of the blocking call that can be detected before anything is sent.
    pub fn start<T: Element>(
        &mut self,
        call: &Call<'_>,
        input: &'env [T],
        output: &'env mut [T],
    ) -> Result<Request<()>, Error> {
        let buffers = Buffers::apart(cast_slice(input), cast_slice_mut(output));
        self.communicator.enqueue(call, T::DATA_TYPE, buffers, ())
    }

    /// Starts any call in place: `buffer` is the larger of input and output, and the smaller is
    /// this rank's block of `buffer`.
    ///
    /// # Errors
    ///
    /// The errors of the blocking call that can be detected before anything is sent.
    pub fn start_in_place<T: Element>(
        &mut self,
        call: &Call<'_>,
        buffer: &'env mut [T],
    ) -> Result<Request<()>, Error> {
        call.same_blocks()?;
        let buffers = Buffers::in_place(cast_slice_mut(buffer), call, self.communicator.rank());
        self.communicator.enqueue(call, T::DATA_TYPE, buffers, ())
    }

    /// Starts [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    ///
    /// The errors of the blocking call that can be detected before anything is sent.
    pub fn start_all_reduce_in_place<T: Element>(
        &mut self,
        buffer: &'env mut [T],
        op: Reduction<T>,
    ) -> Result<Request<()>, Error> {
        let call = Call::even(Collective::AllReduce, T::DATA_TYPE, buffer.len()).reducing(op);
        self.start_in_place(&call, buffer)
    }

    /// Does what [`Communicator::test`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Communicator::test`].
    pub fn test(&mut self, request: &Request<()>) -> Result<bool, Error> {
        self.communicator.test(request)
    }

    /// Does what [`Communicator::wait`] does; the buffers stay borrowed until the scope has ended.
    ///
    /// # Errors
    ///
    /// The errors of [`Communicator::wait`].
    pub fn wait(&mut self, request: Request<()>, timeout: Duration) -> Result<(), Error> {
        self.communicator.wait(request, timeout)
    }
}
