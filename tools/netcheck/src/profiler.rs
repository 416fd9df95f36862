//! NCCL's profiler, as a plugin sees it. With each request that NCCL profiles, NCCL passes the
//! handle of an NCCL event. A plugin tells the profiler when an event of the plugin begins, is
//! updated or ends. The parent of each event of a plugin must be an event that NCCL has passed.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use nccl_net_abi::{NcclResult, Profiler};

use crate::calls::Opaque;
use crate::memory::Memory;
use crate::stop::{Outcome, failed};

/// Action that begins an event. The actions are 0 (begin), 1 (end), 2 (update), and 3 (update and
/// end).
const BEGINS: c_int = 0;
/// Action with the largest number.
const LAST: c_int = 3;

/// Event that comes with requests. The plugin must not change the event's bytes.
static EVENT: OnceLock<Memory> = OnceLock::new();
/// First wrong report of a plugin.
static WRONG: Mutex<Option<String>> = Mutex::new(None);

/// Returns the event that comes with a request that NCCL profiles.
pub(crate) fn event() -> Opaque {
    EVENT.get_or_init(|| Memory::new(64)).address().expose_provenance()
}

/// Returns the profiler that is given to `init`.
pub(crate) fn profiler() -> Profiler {
    Some(observe)
}

/// Fails if the plugin made a wrong report or changed the event.
pub(crate) fn verify() -> Outcome {
    if let Some(wrong) = WRONG.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return failed(wrong);
    }
    if EVENT.get().is_some_and(|event| event.verify(0, 0, 0).is_err()) {
        return failed("the plugin wrote to the memory behind a profiler event's pointer");
    }
    Ok(())
}

/// Acts as NCCL: gives a handle (`name`) to each event that begins, and expects that handle in
/// later reports.
unsafe extern "C" fn observe(
    name: *mut *mut c_void,
    what: c_int,
    parent: *mut c_void,
    _kind: i64,
    _description: *mut c_void,
) -> NcclResult {
    // SAFETY: the plugin has room for the handle.
    let name = unsafe { name.as_mut() };
    let own = ptr::with_exposed_provenance_mut(event());
    let wrong = match (name, what) {
        (None, _) => Some("a NULL pointer for the event".to_owned()),
        (Some(_), BEGINS) if parent != own => {
            Some(format!("an event whose parent, {parent:p}, came with no request"))
        }
        (Some(name), BEGINS) => {
            *name = own;
            None
        }
        (Some(name), ..=LAST) if what > BEGINS && *name == own => None,
        (Some(name), _) => Some(format!(
            "action {what} for the event {name:p}; only action 0 (begin), and actions 1 to 3 of an \
             event that has begun, are valid"
        )),
    };
    if let Some(wrong) = wrong {
        let mut first = WRONG.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(format!("the plugin called the profiler with {wrong}"));
    }
    NcclResult::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_wrong_if_its_parent_or_action_is_unknown_or_its_event_has_not_begun() {
        let parent: *mut c_void = ptr::with_exposed_provenance_mut(event());
        let mut name = ptr::null_mut();
        let place = &raw mut name;
        let tell = |what, parent| {
            // SAFETY: there is room for the handle.
            let result = unsafe { observe(place, what, parent, 0, ptr::null_mut()) };
            assert_eq!(result, NcclResult::SUCCESS);
            verify()
        };
        assert!(tell(1, ptr::null_mut()).is_err());
        assert!(tell(BEGINS, ptr::null_mut()).is_err());
        assert!([BEGINS, 2, 3, 1].iter().all(|what| tell(*what, parent).is_ok()));
        assert!(tell(LAST + 1, parent).is_err() && tell(-1, parent).is_err());
    }
}
