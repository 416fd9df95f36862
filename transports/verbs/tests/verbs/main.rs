//! RDMA over devices that are none.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod failing;
#[cfg(test)]
mod joining;
#[cfg(test)]
mod many;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod pair;
#[cfg(test)]
mod spreading;
