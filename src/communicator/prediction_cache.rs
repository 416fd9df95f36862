//! Cache of predictions, which a tuning table's model makes for calls that were not measured. The
//! model predicts each class of sizes once, which takes some milliseconds.

use std::collections::BTreeMap;

use ccl_core::config::Config;
use ccl_core::select::variant::Variant;
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, DataType};

use super::expected::{Asked, predicted};

/// Predictions by collective and size class. Class `n` has sizes from 2^n to 2^(n+1) - 1 bytes.
#[derive(Debug, Default)]
pub(super) struct PredictionCache {
    known: BTreeMap<(Collective, u32), Vec<(Variant, f64)>>,
}

impl PredictionCache {
    /// Returns the duration of each variant for about `bytes` bytes in the larger buffer, in
    /// nanoseconds, the fastest first. The list is empty if there is no model, or if the
    /// collective's blocks are not equal.
    ///
    /// Ranks that have the same configuration get the same list: it is computed per class, for root
    /// 0 and elements of four bytes. The computation uses only additions, multiplications and
    /// divisions, which all processors round alike.
    pub(super) fn variants(
        &mut self,
        config: &Config,
        hosts: &Hosts,
        collective: Collective,
        bytes: usize,
    ) -> &[(Variant, f64)] {
        let class = bytes.max(1).ilog2();
        self.known.entry((collective, class)).or_insert_with(|| {
            let (Some(model), Some(blocks)) =
                (&config.tuning.model, collective.even_blocks(hosts.ranks()))
            else {
                return Vec::new();
            };
            let element_bytes = DataType::Float32.bytes();
            let block_bytes = element_bytes * blocks.max(1) as usize;
            let count = ((1 << class) / block_bytes).max(1);
            let bytes = count * block_bytes;
            let asked = Asked { collective, root: 0, count, element_bytes, bytes, hosts };
            // If the list is empty, the library's rules choose the variant.
            predicted(model, config, &asked).unwrap_or_default()
        })
    }
}
