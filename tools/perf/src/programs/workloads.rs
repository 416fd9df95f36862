//! Training steps as lists of collectives. Every rank computes the same list, but with its own
//! counts.

use ccl_core::types::{Collective, DataType, Rank, ReduceOp};

use super::models;
use crate::data::generate::mix;
use crate::geometry::Counts;
use crate::trial::Trial;

/// Training steps that can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// ResNet-50, data parallel: gradient buckets in float
    #[value(name = "resnet50")]
    ResNet50,
    /// GPT-2 small, data parallel: gradient buckets in float
    #[value(name = "gpt2")]
    Gpt2,
    /// Llama-3-8B, data parallel: gradient buckets in bfloat16 (up to 1 GB)
    #[value(name = "llama3-8b")]
    Llama3,
    /// Llama-3-8B, fully sharded: gathers and reduce-scatters per layer in bfloat16 (up to 1 GB)
    #[value(name = "llama3-8b-fsdp")]
    Llama3Sharded,
    /// A recommender with 26 embedding tables divided among the ranks
    #[value(name = "dlrm")]
    Dlrm,
    /// A mixture of experts: 32 layers, 8 or more experts of unequal popularity, 2 per token
    #[value(name = "moe")]
    MixtureOfExperts,
}

/// Parameters of one rank's list of calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scene {
    /// Number of this rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// Factor on every count, above 0 and up to 1.
    pub scale: f64,
    /// Seed of random choices.
    pub seed: u64,
}

/// Dimensions of the recommender: Criteo's number of tables, with a usual width and batch size.
const TABLES: u32 = 26;
const TABLE_WIDTH: usize = 128;
const SAMPLES_PER_RANK: usize = 2048;

/// Dimensions of the mixture of experts: those of Mixtral 8×7B.
const EXPERTS_MIN: u32 = 8;
const EXPERT_WIDTH: usize = 4096;
const EXPERT_LAYERS: u64 = 32;
const EXPERTS_PER_TOKEN: usize = 2;
const TOKENS_PER_RANK: usize = 4096;

impl Workload {
    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::ResNet50 => "resnet50",
            Workload::Gpt2 => "gpt2",
            Workload::Llama3 => "llama3-8b",
            Workload::Llama3Sharded => "llama3-8b-fsdp",
            Workload::Dlrm => "dlrm",
            Workload::MixtureOfExperts => "moe",
        }
    }

    /// Returns the calls of one step, in order.
    #[must_use]
    pub fn calls(self, scene: Scene) -> Vec<Trial<'static>> {
        let buckets = |parameters: &[usize], data_type: DataType| {
            models::gradient_buckets(parameters, data_type.bytes())
                .into_iter()
                .map(|count| {
                    scene.call(Collective::AllReduce, data_type, Counts::Even(scene.scaled(count)))
                })
                .collect()
        };
        match self {
            Workload::ResNet50 => buckets(&models::resnet_50(), DataType::Float32),
            Workload::Gpt2 => buckets(&models::gpt_2(), DataType::Float32),
            Workload::Llama3 => buckets(&models::llama_3_8b_units().concat(), DataType::Bfloat16),
            Workload::Llama3Sharded => scene.sharded(&models::llama_3_8b_units()),
            Workload::Dlrm => scene.recommender(),
            Workload::MixtureOfExperts => scene.experts(),
        }
    }
}

impl Scene {
    fn scaled(self, count: usize) -> usize {
        (count as f64 * self.scale).ceil() as usize
    }

    fn call(self, collective: Collective, data_type: DataType, counts: Counts) -> Trial<'static> {
        Trial {
            collective,
            data_type,
            op: ReduceOp::Avg,
            root: 0,
            counts,
            algorithm: None,
            rank: self.rank,
            ranks: self.ranks,
        }
    }

    /// Returns the calls of fully sharded training, with `units` as in
    /// [`models::llama_3_8b_units`]. Forward: gather each unit. Backward: gather each unit again,
    /// then reduce-scatter its gradients.
    fn sharded(self, units: &[Vec<usize>]) -> Vec<Trial<'static>> {
        let call = |collective, unit: &Vec<usize>| {
            let shard = self.scaled(unit.iter().sum()).div_ceil(self.ranks as usize);
            self.call(collective, DataType::Bfloat16, Counts::Even(shard))
        };
        let forward = units.iter().map(|unit| call(Collective::AllGather, unit));
        let backward = units.iter().rev().flat_map(|unit| {
            [call(Collective::AllGather, unit), call(Collective::ReduceScatter, unit)]
        });
        forward.chain(backward).collect()
    }

    /// Returns the calls of the recommender. Forward: the holder of a table sends each rank the
    /// table's rows for that rank's samples. Backward: the gradients go in the reverse direction.
    /// The counts are skewed if the number of tables, 26, is not a multiple of the number of ranks.
    fn recommender(self) -> Vec<Trial<'static>> {
        let samples = self.scaled(SAMPLES_PER_RANK);
        let rows = |holder: Rank| {
            let tables = (0..TABLES).filter(|table| table % self.ranks == holder).count();
            tables * samples * TABLE_WIDTH
        };
        let to_each = vec![rows(self.rank); self.ranks as usize];
        let from_each: Vec<usize> = (0..self.ranks).map(rows).collect();
        self.there_and_back(DataType::Float32, to_each, from_each)
    }

    fn there_and_back(
        self,
        data_type: DataType,
        send: Vec<usize>,
        recv: Vec<usize>,
    ) -> Vec<Trial<'static>> {
        let back = Counts::Vector { send: recv.clone(), recv: send.clone() };
        let there = Counts::Vector { send, recv };
        [there, back].map(|counts| self.call(Collective::AllToAllV, data_type, counts)).to_vec()
    }

    /// Returns the calls of the mixture of experts. In each layer, tokens go to their experts and
    /// back, in the forward pass and again in the backward pass.
    fn experts(self) -> Vec<Trial<'static>> {
        let layers: Vec<Vec<Trial<'static>>> = (0..EXPERT_LAYERS)
            .map(|layer| {
                let own = self.routed(layer, self.rank);
                let recv = (0..self.ranks)
                    .map(|from| self.routed(layer, from)[self.rank as usize])
                    .collect();
                self.there_and_back(DataType::Bfloat16, own, recv)
            })
            .collect();
        let forward = layers.iter().flatten();
        let backward = layers.iter().rev().flatten();
        forward.chain(backward).cloned().collect()
    }

    /// Returns the number of elements that `from` sends to each rank in a layer. Each token draws
    /// distinct experts. Each layer has its own order of the experts. A token draws the k-th expert
    /// in this order with a weight of 1/k.
    fn routed(self, layer: u64, from: Rank) -> Vec<usize> {
        let experts = EXPERTS_MIN.max(self.ranks);
        let weights: Vec<f64> = (1..=experts).map(|place| 1.0 / f64::from(place)).collect();
        let total: f64 = weights.iter().sum();
        let stream = mix(mix(self.seed, layer), u64::from(from) + 1);
        let turn = (mix(self.seed, layer) % u64::from(experts)) as u32;
        let mut elements = vec![0; self.ranks as usize];
        let mut draws = 0;
        for _ in 0..self.scaled(TOKENS_PER_RANK) {
            let mut chosen = [usize::MAX; EXPERTS_PER_TOKEN];
            let mut found = 0;
            while found < EXPERTS_PER_TOKEN {
                draws += 1;
                let place = drawn(&weights, total, mix(stream, draws));
                if !chosen.contains(&place) {
                    chosen[found] = place;
                    found += 1;
                    let expert = (place as u32 + turn) % experts;
                    elements[(expert % self.ranks) as usize] += EXPERT_WIDTH;
                }
            }
        }
        elements
    }
}

fn drawn(weights: &[f64], total: f64, random: u64) -> usize {
    let mut left = (random >> 11) as f64 / (1_u64 << 53) as f64 * total;
    for (place, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return place;
        }
    }
    weights.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenes(ranks: u32) -> impl Iterator<Item = Scene> {
        (0..ranks).map(move |rank| Scene { rank, ranks, scale: 0.01, seed: 7 })
    }

    #[test]
    fn sent_and_received_counts_agree_for_every_pair_of_ranks() {
        for workload in [Workload::Dlrm, Workload::MixtureOfExperts] {
            for ranks in [1, 2, 3, 8, 11] {
                let lists: Vec<_> = scenes(ranks).map(|scene| workload.calls(scene)).collect();
                let counts = |rank: usize, call: usize| match &lists[rank][call].counts {
                    Counts::Vector { send, recv } => (send, recv),
                    other => panic!("{other:?}"),
                };
                for call in 0..lists[0].len() {
                    for from in 0..ranks as usize {
                        for to in 0..ranks as usize {
                            assert_eq!(counts(from, call).0[to], counts(to, call).1[from]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn experts_are_loaded_unequally_and_each_token_goes_to_two_of_them() {
        let scene = Scene { rank: 0, ranks: 8, scale: 1.0, seed: 7 };
        let elements = scene.routed(0, 0);
        let all = TOKENS_PER_RANK * EXPERTS_PER_TOKEN * EXPERT_WIDTH;
        assert_eq!(elements.iter().sum::<usize>(), all);
        assert!(elements.iter().max().unwrap() > &(2 * elements.iter().min().unwrap()));
        assert_ne!(elements, scene.routed(1, 0));
        assert_eq!(elements, scene.routed(0, 0));
    }

    #[test]
    fn steps_have_the_calls_and_counts_of_their_models() {
        let scene = Scene { rank: 1, ranks: 4, scale: 1.0, seed: 7 };
        let reduced: usize =
            Workload::Gpt2.calls(scene).iter().map(|call| call.layout().input).sum();
        assert_eq!(reduced, 124_439_808);
        let sharded = Workload::Llama3Sharded.calls(scene);
        assert_eq!(sharded.len(), 3 * 34);
        assert_eq!(sharded[1].layout().output, 218_112_000);
        assert_eq!(Workload::Dlrm.calls(scene)[0].layout().input, 7 * 4 * 2048 * 128);
    }
}
