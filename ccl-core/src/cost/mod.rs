//! How long a collective takes: the programs of all ranks run in virtual time ([`predict`],
//! [`walk`]), with numbers that are known by name ([`figures`]).

pub mod figures;
mod load;
pub mod predict;
pub mod walk;
