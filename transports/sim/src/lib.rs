//! A transport with virtual time, seeded loss, reordering, delay, duplication and crashes.
