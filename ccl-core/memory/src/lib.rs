//! Raw and mapped memory regions: the one door to unsafe memory.
