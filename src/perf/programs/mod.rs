//! The programs that are no sweep over sizes.
