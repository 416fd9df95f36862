//! Tests of a device made of several simulated ones.

#[cfg(test)]
mod broken;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod failing;
#[cfg(test)]
mod seals;
#[cfg(test)]
mod sides;
