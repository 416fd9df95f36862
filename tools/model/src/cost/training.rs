//! Effect of communication on training: when communication takes longer than computing.
//!
//! `flops_per_s`, or `C`, is the computing rate of one accelerator; `bytes_per_s`, or `W`, is the
//! rate at which an accelerator, or a node, sends. `D` and `F` are the widths of a model's layers,
//! `B` the tokens of a batch. Each number of a model has two bytes. Formulas without another source
//! are from the scaling book, "Rooflines for LLM scaling on GPUs"; [`super`] has the books' titles.

/// Returns the least number of tokens per accelerator with which data parallelism, fully sharded or
/// not, is compute-bound: `C / W`.
#[must_use]
pub fn data_parallel_tokens(flops_per_s: f64, bytes_per_s: f64) -> f64 {
    flops_per_s / bytes_per_s
}

/// Converts `tokens`, a result of [`data_parallel_tokens`], to the number for a mixture of `E`
/// experts with `k` experts per token: `C / W · E / k`.
#[must_use]
pub fn expert_data_parallel_tokens(tokens: f64, experts: f64, k: f64) -> f64 {
    tokens * experts / k
}

/// Converts `tokens`, a result of [`data_parallel_tokens`], to the number for data parallelism over
/// `X` groups of accelerators: `C / W · (X − 1) / X`. The difference is small if `X` is large.
#[must_use]
pub fn data_parallel_tokens_of_few(tokens: f64, groups: f64) -> f64 {
    tokens * (groups - 1.0) / groups
}

/// Returns the tokens of a batch over all accelerators, with `tokens` on each.
#[must_use]
pub fn batch_tokens(tokens: f64, accelerators: f64) -> f64 {
    tokens * accelerators
}

/// Returns the largest number of accelerators over which tensor parallelism can divide a layer and
/// stay compute-bound: `F W / C`.
#[must_use]
pub fn tensor_parallel_max(width: f64, flops_per_s: f64, bytes_per_s: f64) -> f64 {
    width * bytes_per_s / flops_per_s
}

/// Returns `tensor_parallel_max` over several nodes, with the bandwidth of a node: `N + F W / C`,
/// where `N` is the number of accelerators of a node. (The source requires `F > (Y − N) C / W` for
/// `Y` accelerators.)
#[must_use]
pub fn tensor_parallel_over_nodes_max(
    width: f64,
    flops_per_s: f64,
    node_bytes_per_s: f64,
    node: f64,
) -> f64 {
    node + tensor_parallel_max(width, flops_per_s, node_bytes_per_s)
}

/// Returns the least width of an expert with which expert parallelism over many nodes is bound by
/// computing: `N C / W`, where `N` is the number of accelerators of a node.
#[must_use]
pub fn expert_parallel_width_min(flops_per_s: f64, node_bytes_per_s: f64, node: f64) -> f64 {
    node * flops_per_s / node_bytes_per_s
}

/// Returns the time of the two exchanges of an expert-parallel layer over `Z` accelerators in nodes
/// of `N`, with the bandwidth `W` of a node: `4 B D (Z − N) / (W Z) · min(N k / Z, 1)`. `Z` must
/// be at least `N`.
#[must_use]
pub fn expert_parallel_s(
    tokens: f64,
    width: f64,
    accelerators: f64,
    k: f64,
    node_bytes_per_s: f64,
    node: f64,
) -> f64 {
    let beyond = (accelerators - node) / (node_bytes_per_s * accelerators);
    4.0 * tokens * width * beyond * (node * k / accelerators).min(1.0)
}

/// Returns the time of one hop of a microbatch between stages of a pipeline of `N` microbatches:
/// `2 B D / (W N)`.
#[must_use]
pub fn pipeline_hop_s(tokens: f64, width: f64, bytes_per_s: f64, microbatches: f64) -> f64 {
    2.0 * tokens * width / (bytes_per_s * microbatches)
}

/// Returns the time of all consecutive hops in a pipeline: `N + stages − 2` of them.
#[must_use]
pub fn pipeline_s(hop_s: f64, microbatches: f64, stages: f64) -> f64 {
    hop_s * (microbatches + stages - 2.0)
}

/// Returns the least number of accelerators that hold `bytes`, not rounded up.
#[must_use]
pub fn accelerators_for(bytes: f64, memory_bytes: f64) -> f64 {
    bytes / memory_bytes
}

/// Returns the operations of training: 6 for each parameter and token.
#[must_use]
pub fn training_flops(parameters: f64, tokens: f64) -> f64 {
    6.0 * parameters * tokens
}

/// Returns the time of `flops` operations on all accelerators at a share of their peak rate.
#[must_use]
pub fn computing_s(flops: f64, accelerators: f64, flops_per_s: f64, utilization: f64) -> f64 {
    flops / (accelerators * flops_per_s * utilization)
}

/// Returns the operations of one step for each accelerator, by the engineering book's estimate:
/// `2 × passes × parameters × sequence × batch / accelerators`. There are 4 passes if activations
/// are computed again, else 3.
#[must_use]
pub fn step_flops(
    passes: f64,
    parameters: f64,
    sequence: f64,
    batch: f64,
    accelerators: f64,
) -> f64 {
    2.0 * passes * parameters * sequence * batch / accelerators
}

/// Returns the time of a transfer over a link: `bytes / W`.
#[must_use]
pub fn transfer_s(bytes: f64, bytes_per_s: f64) -> f64 {
    bytes / bytes_per_s
}

#[cfg(test)]
mod tests {
    use super::super::about;
    use super::*;

    /// Operations per second of an H100.
    const FLOPS: f64 = 990e12;

    #[test]
    fn data_and_expert_parallelism_follow_the_formulas_of_the_book() {
        let tokens = [450e9, 400e9, 300e9].map(|bytes| data_parallel_tokens(FLOPS, bytes));
        assert_eq!(tokens, [2200.0, 2475.0, 3300.0]);
        assert_eq!(batch_tokens(2475.0, 16_000.0), 39.6e6);
        about(batch_tokens(3300.0, 2048.0), 6.76e6, 5e-4);
        assert_eq!(expert_data_parallel_tokens(2475.0, 128.0, 4.0), 79_200.0);
        assert_eq!(data_parallel_tokens_of_few(2475.0, 2.0), 1237.5);
        assert_eq!(expert_parallel_width_min(FLOPS, 400e9, 8.0), 19_800.0);
        assert_eq!(data_parallel_tokens(2250e12, 900e9), 2500.0);
        assert_eq!(data_parallel_tokens(2250e12, 400e9), 5625.0);
        // The time grows with the experts per token, until each token goes to every node.
        let few = expert_parallel_s(1e6, 4096.0, 64.0, 1.0, 400e9, 8.0);
        let many = expert_parallel_s(1e6, 4096.0, 64.0, 8.0, 400e9, 8.0);
        about(many / few, 8.0, 1e-12);
        about(expert_parallel_s(1e6, 4096.0, 64.0, 100.0, 400e9, 8.0), many, 1e-12);
    }

    #[test]
    fn tensor_and_pipeline_parallelism_follow_the_formulas_of_the_book() {
        about(tensor_parallel_max(28_000.0, FLOPS, 450e9), 12.7, 3e-3);
        about(tensor_parallel_max(28_000.0, FLOPS, 400e9), 11.3, 3e-3);
        about(tensor_parallel_over_nodes_max(28_000.0, FLOPS, 400e9, 8.0), 19.3, 3e-3);
        // With eight stages of one node each, data parallelism uses the networks of eight nodes: 8
        // times 400 GB/s.
        about(data_parallel_tokens(FLOPS, 3200e9), 309.0, 2e-3);
        about(4e6 / 4096.0, 976.0, 1e-3);
        let hop = pipeline_hop_s(4e6, 8192.0, 400e9, 8.0);
        about(pipeline_s(hop, 8.0, 4.0), 10.0 * 2.0 * 4e6 * 8192.0 / (400e9 * 8.0), 1e-12);
    }

    #[test]
    fn a_model_of_70_billion_parameters_has_the_state_and_training_time_of_the_book() {
        assert_eq!(70e9 * 10.0, 700e9);
        assert_eq!(accelerators_for(700e9, 80e9), 8.75);
        let flops = training_flops(70e9, 15e12);
        about(flops, 6.3e24, 1e-12);
        let seconds = computing_s(flops, 4096.0, FLOPS, 0.45);
        about(seconds, 3.45e6, 2e-3);
        about(seconds / 86_400.0, 40.0, 5e-3);
    }

    #[test]
    fn steps_and_transfers_take_the_times_of_the_engineering_book() {
        let step = step_flops(4.0, 2e9, 2048.0, 16.0, 8.0);
        about(step / 1e12, 65.536, 1e-12);
        about(transfer_s(step, 156e12), 0.42, 2e-3);
        let bytes = 16e9;
        for (bytes_per_s, expected, tolerance) in
            [(300e9, 0.053, 1e-2), (450e9, 0.0356, 2e-3), (25e9, 0.64, 1e-12), (50e9, 0.32, 1e-12)]
        {
            about(transfer_s(bytes, bytes_per_s), expected, tolerance);
        }
        about(transfer_s(80e9 * 4.0, 25e9), 12.8, 1e-12);
        about(transfer_s(80e9 * 4.0, 200e9), 1.6, 1e-12);
    }
}
