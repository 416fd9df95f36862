//! Reductions on CPU memory and the ports that run lowered programs over mapped regions.
