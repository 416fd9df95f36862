//! Tests of RDMA, over software devices and over devices that the environment names.

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
mod striping;
