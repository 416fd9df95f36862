//! Parameter counts of published models, generated from the published dimensions, and the buckets
//! into which data-parallel training packs the gradients.

/// Number of elements of each parameter tensor, in the order of the forward pass.
pub type Parameters = Vec<usize>;

/// Returns the parameters of ResNet-50 (He et al., 2015; the variant with the stride in the 3×3
/// convolution), 1,000 classes.
#[must_use]
pub fn resnet_50() -> Parameters {
    let mut parameters = Vec::new();
    let mut convolution = |inputs: usize, outputs: usize, side: usize| {
        // Weights, then the scale and the shift of the normalisation that follows.
        parameters.extend([inputs * outputs * side * side, outputs, outputs]);
    };
    convolution(3, 64, 7);
    let mut inputs = 64;
    for (blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..blocks {
            convolution(inputs, width, 1);
            convolution(width, width, 3);
            convolution(width, 4 * width, 1);
            if block == 0 {
                convolution(inputs, 4 * width, 1);
            }
            inputs = 4 * width;
        }
    }
    parameters.extend([1000 * inputs, 1000]);
    parameters
}

/// Returns the parameters of GPT-2 small (Radford et al., 2019): 12 layers of width 768, the output
/// tied to the embedding.
#[must_use]
pub fn gpt_2() -> Parameters {
    let width = 768;
    let mut parameters = vec![50_257 * width, 1_024 * width];
    for _ in 0..12 {
        let linear = |inputs: usize, outputs: usize| [inputs * outputs, outputs];
        parameters.extend([width, width]);
        parameters.extend(linear(width, 3 * width));
        parameters.extend(linear(width, width));
        parameters.extend([width, width]);
        parameters.extend(linear(width, 4 * width));
        parameters.extend(linear(4 * width, width));
    }
    parameters.extend([width, width]);
    parameters
}

/// Returns the parameters of Llama 3 8B (Meta, 2024): 32 layers of width 4096, 8 key-value heads,
/// 128,256 tokens. There is one vector per unit (tensors that fully sharded training gathers
/// together): the embedding, each layer, and the final norm with the output.
#[must_use]
pub fn llama_3_8b_units() -> Vec<Parameters> {
    let (width, key_value, hidden, tokens) = (4096, 1024, 14_336, 128_256);
    let layer = vec![
        width * width,
        width * key_value,
        width * key_value,
        width * width,
        width * hidden,
        hidden * width,
        width * hidden,
        width,
        width,
    ];
    let mut units = vec![vec![tokens * width]];
    units.extend(std::iter::repeat_n(layer, 32));
    units.push(vec![width, tokens * width]);
    units
}

/// Number of bytes that fills the first bucket: small, so that communication begins early.
const FIRST_BUCKET_BYTES: usize = 1 << 20;

/// Number of bytes that fills each later bucket, as in DistributedDataParallel.
const BUCKET_BYTES: usize = 25 << 20;

/// Returns the number of elements of each gradient bucket, in the order in which the backward pass
/// fills the buckets. A bucket ends with the tensor that fills it.
#[must_use]
pub fn gradient_buckets(parameters: &[usize], element_bytes: usize) -> Vec<usize> {
    let mut buckets = Vec::new();
    let mut open = 0;
    for &tensor in parameters.iter().rev() {
        open += tensor;
        let limit = if buckets.is_empty() { FIRST_BUCKET_BYTES } else { BUCKET_BYTES };
        if open * element_bytes >= limit {
            buckets.push(open);
            open = 0;
        }
    }
    if open > 0 {
        buckets.push(open);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_the_published_ones() {
        assert_eq!(resnet_50().iter().sum::<usize>(), 25_557_032);
        assert_eq!(resnet_50().len(), 161);
        assert_eq!(gpt_2().iter().sum::<usize>(), 124_439_808);
        assert_eq!(llama_3_8b_units().concat().iter().sum::<usize>(), 8_030_261_248);
    }

    #[test]
    fn buckets_hold_everything_and_are_closed_when_full() {
        let parameters = resnet_50();
        let buckets = gradient_buckets(&parameters, 4);
        assert_eq!(buckets.iter().sum::<usize>(), 25_557_032);
        // The last layer alone is more than the limit of the first bucket.
        assert_eq!(buckets[0], 2_049_000);
        let inner = &buckets[1..buckets.len() - 1];
        assert!(inner.iter().all(|&elements| elements * 4 >= BUCKET_BYTES));
        assert_eq!(gradient_buckets(&[10, 20], 4), [30]);
        assert!(gradient_buckets(&[], 4).is_empty());
    }
}
