//! Tests of the command `ferroccl` and of its documentation pages, which show what it prints.

#[cfg(test)]
mod acceptance;
#[cfg(test)]
mod cost;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod place;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod topo;
