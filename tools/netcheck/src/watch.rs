//! The current step of a process, and its deadline.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after the deadline in which a step can still report its failure, even on a busy machine.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// Current step, current call, and the deadline.
#[derive(Debug)]
pub(crate) struct Watch {
    doing: Mutex<Doing>,
    timeout: Duration,
    /// Time after which a call that must not block counts as stuck.
    call_timeout: Duration,
}

#[derive(Debug)]
struct Doing {
    step: String,
    /// Call that must return soon, and the time at which it began.
    call: Option<(&'static str, Instant)>,
    deadline: Instant,
}

impl Watch {
    /// Makes a watch whose time begins now.
    pub(crate) fn new(timeout: Duration, call_timeout: Duration) -> Watch {
        let deadline = Instant::now() + timeout;
        Watch {
            doing: Mutex::new(Doing { step: "starting".to_owned(), call: None, deadline }),
            timeout,
            call_timeout,
        }
    }

    /// Sets the current step.
    pub(crate) fn step(&self, step: &str) {
        step.clone_into(&mut self.lock().step);
    }

    /// Makes a call that must not block.
    pub(crate) fn call<T>(&self, name: &'static str, call: impl FnOnce() -> T) -> T {
        self.lock().call = Some((name, Instant::now()));
        let result = call();
        self.lock().call = None;
        result
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.lock().deadline
    }

    /// Returns the time until the deadline.
    pub(crate) fn left(&self) -> Duration {
        self.lock().deadline.saturating_duration_since(Instant::now())
    }

    /// Describes a wait that was too long.
    pub(crate) fn too_long(&self, what: &str) -> String {
        let doing = self.lock();
        format!(
            "did not end within {} s; last step: {}; waited for {what}",
            self.timeout.as_secs_f64(),
            doing.step
        )
    }

    /// Returns `why`, and appends the current step if `why` names no step.
    pub(crate) fn with_step(&self, why: String) -> String {
        if why.contains("last step: ") {
            return why;
        }
        format!("{why}; last step: {}", self.lock().step)
    }

    /// Returns the failure of a process that is stuck in a call of the plugin, and so cannot report
    /// the failure itself.
    pub(crate) fn stuck(&self) -> Option<String> {
        let doing = self.lock();
        if let Some((name, since)) = doing.call
            && since.elapsed() > self.call_timeout
        {
            let seconds = self.call_timeout.as_secs_f64();
            return Some(format!(
                "{name} blocked for more than {seconds} s, expected it to return at once; last \
                 step: {}",
                doing.step
            ));
        }
        // At the deadline, a polling step reports its own failure, in more detail.
        let over = Instant::now() > doing.deadline + REPORT_WITHIN;
        over.then(|| {
            format!(
                "did not end within {} s; last step: {}; a call of the plugin did not return",
                self.timeout.as_secs_f64(),
                doing.step
            )
        })
    }

    fn lock(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
