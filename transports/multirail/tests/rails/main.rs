//! Several simulated devices as one.

#[cfg(test)]
mod broken;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod failing;
#[cfg(test)]
mod house;
