//! What the model of a table predicts for calls that were not measured: worked out once for each
//! class of sizes, which takes some milliseconds, and kept.

use std::collections::BTreeMap;

use ccl_core::config::Config;
use ccl_core::select::variant::Variant;
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, DataType};

use super::expected::{Asked, predicted};

/// Predictions by collective and class, a power of two of bytes.
#[derive(Debug, Default)]
pub(super) struct PredictionCache {
    known: BTreeMap<(Collective, u32), Vec<(Variant, f64)>>,
}

impl PredictionCache {
    /// How long each way takes for about so many bytes of the larger buffer, in nanoseconds, the
    /// fastest first; nothing if there is no model, or the collective's blocks are not all alike.
    ///
    /// Ranks that have the same configuration get the same: it depends on the class, with a first
    /// root and elements of four bytes, and is worked out by additions, multiplications and
    /// divisions alone.
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
            // Without a prediction the rules decide.
            predicted(model, config, &asked).unwrap_or_default()
        })
    }
}
