//! One suite of tests over every transport.
