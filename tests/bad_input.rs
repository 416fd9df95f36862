use crate::harness::processes::Case;
pub(crate) const CASES: &[Case] = &[];
