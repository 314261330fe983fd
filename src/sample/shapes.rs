//! Names and shapes of sample models, for any number of elements.

use crate::converters::OutputTensor;
use crate::dtype::Dtype;

/// The tensors of a model, and its `config.json`.
pub(super) struct Model {
    pub(super) tensors: Vec<OutputTensor>,
    pub(super) config: String,
}

/// A vocabulary as today's models have it. Larger ones are only made where no layer fits any more.
const VOCABULARY: u64 = 150_000;

/// Layers of the largest models. Beyond them models grow in width, and so does a sample: the number
/// of tensors stays below some thousands, whatever the size.
const MAX_USUAL_LAYERS: u64 = 128;

/// Width, as a power of two, at which that many layers take more than 2^60 elements.
const MAX_HIDDEN_BITS: u32 = 25;

/// A dense transformer of about `elements` elements (at least 128): off by at most its hidden size.
pub(super) fn dense(elements: u64, dtype: Dtype) -> Model {
    // The widest model that can have the number of layers that models of its width have.
    let hidden = (1..=MAX_HIDDEN_BITS)
        .rev()
        .map(|bits| 1 << bits)
        .find(|&hidden| usual_layers(hidden) * layer_elements(hidden) <= elements / 5 * 4)
        .unwrap_or(2);
    let vocabulary_share = (elements / 5).min(2 * hidden * VOCABULARY);
    let layers = (elements - hidden - vocabulary_share) / layer_elements(hidden);
    let layers = layers.max(1);
    // What the layers leave is for the two vocabulary matrices: the one free number of the model.
    let rest = elements.saturating_sub(hidden + layers * layer_elements(hidden));
    let vocabulary = ((rest + hidden) / (2 * hidden)).max(1);
    let (kv, wide) = (kv_size(hidden), 3 * hidden);

    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[u64]| {
        tensors.push(OutputTensor::new(name, dtype, shape.iter().copied()));
    };
    add("model.embed_tokens.weight".into(), &[vocabulary, hidden]);
    for layer in 0..layers {
        let mut part = |part: &str, shape: &[u64]| {
            add(format!("model.layers.{layer}.{part}.weight"), shape);
        };
        part("input_layernorm", &[hidden]);
        part("self_attn.q_proj", &[hidden, hidden]);
        part("self_attn.k_proj", &[kv, hidden]);
        part("self_attn.v_proj", &[kv, hidden]);
        part("self_attn.o_proj", &[hidden, hidden]);
        part("post_attention_layernorm", &[hidden]);
        part("mlp.gate_proj", &[wide, hidden]);
        part("mlp.up_proj", &[wide, hidden]);
        part("mlp.down_proj", &[hidden, wide]);
    }
    add("model.norm.weight".into(), &[hidden]);
    add("lm_head.weight".into(), &[vocabulary, hidden]);

    let heads = (hidden / 128).max(1);
    let mut config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": (heads / 4).max(1),
        "head_dim": hidden / heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": false,
    });
    config["torch_dtype"] = dtype.torch_name().into();
    Model {
        tensors,
        config: pretty(&config),
    }
}

/// `count` matrices of about the same size, named as the experts of a mixture are. Together off
/// from `elements` (at least `count`) by less than one row.
pub(super) fn experts(elements: u64, count: u32, dtype: Dtype) -> Model {
    const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
    const EXPERTS: u32 = 64;
    let each = elements / u64::from(count);
    // The widest power of two that leaves at least as many rows as columns, and whose last,
    // missing row is no more than 2 % of the whole.
    let columns = 1_u64 << (each.ilog2() / 2).min((elements / 50).max(1).ilog2());
    // Rows that end exactly where an even cut of all elements would: rounding never adds up.
    let rows_until = |tensor: u32| {
        let rows =
            u128::from(elements) * u128::from(tensor) / (u128::from(count) * u128::from(columns));
        rows as u64
    };
    let tensors = (0..count).map(|number| {
        let (expert, projection) = (number / 3, PROJECTIONS[(number % 3) as usize]);
        let (layer, expert) = (expert / EXPERTS, expert % EXPERTS);
        let name = format!("model.layers.{layer}.mlp.experts.{expert}.{projection}.weight");
        let rows = rows_until(number + 1) - rows_until(number);
        OutputTensor::new(name, dtype, [rows, columns])
    });
    let mut config = serde_json::json!({
        "model_type": "tensora_sample",
        "num_hidden_layers": count.div_ceil(3 * EXPERTS),
        "num_experts": EXPERTS,
    });
    config["torch_dtype"] = dtype.torch_name().into();
    Model {
        tensors: tensors.collect(),
        config: pretty(&config),
    }
}

/// Layers of a model of this width: 16 for 2048, 32 for 4096, as in published ones.
fn usual_layers(hidden: u64) -> u64 {
    (hidden / 128).clamp(1, MAX_USUAL_LAYERS)
}

/// Rows of the key and value projections: grouped-query attention in groups of four.
fn kv_size(hidden: u64) -> u64 {
    (hidden / 4).max(1)
}

fn layer_elements(hidden: u64) -> u64 {
    let attention = 2 * hidden * hidden + 2 * kv_size(hidden) * hidden;
    let mlp = 3 * (3 * hidden) * hidden;
    attention + mlp + 2 * hidden
}

fn pretty(config: &serde_json::Value) -> String {
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn total(model: &Model) -> u64 {
        let names: HashSet<_> = model.tensors.iter().map(|t| &t.name).collect();
        assert_eq!(names.len(), model.tensors.len());
        model.tensors.iter().map(|t| t.nbytes().unwrap()).sum()
    }

    fn off(model: &Model, wanted: u64) -> f64 {
        (total(model) as f64 - wanted as f64).abs() / wanted as f64
    }

    #[test]
    fn every_size_is_met_within_two_per_cent() {
        let mut bytes = 1024_u64;
        while bytes <= 1 << 60 {
            for dtype in [Dtype::U8, Dtype::BF16, Dtype::F64] {
                let elements = bytes / u64::from(dtype.bits() / 8);
                let model = dense(elements, dtype);
                assert!(off(&model, bytes) <= 0.02, "{bytes} {dtype}");
                assert!(model.tensors.len() < 6_000, "{bytes}");
                for count in [1, 7, 100] {
                    let model = experts(elements, count, dtype);
                    assert_eq!(model.tensors.len(), count as usize);
                    assert!(off(&model, bytes) <= 0.02, "{bytes} {dtype} {count}");
                    assert!(model.tensors.iter().all(|t| t.nbytes().unwrap() > 0));
                }
            }
            bytes = bytes * 9 / 8 + 1;
        }
        let many = experts(20_000, 20_000, Dtype::U8);
        assert_eq!((many.tensors.len(), total(&many)), (20_000, 20_000));
    }

    #[test]
    fn the_default_looks_like_a_model() {
        let model = dense(128 << 20, Dtype::BF16);
        assert_eq!(model.tensors.len(), 75);
        assert_eq!(
            &*model.tensors[2].name,
            "model.layers.0.self_attn.q_proj.weight"
        );
        assert_eq!(model.tensors[2].shape.as_slice(), [1024, 1024]);
        let config: serde_json::Value = serde_json::from_str(&model.config).unwrap();
        assert_eq!(config["num_hidden_layers"], 8);
        assert_eq!(config["torch_dtype"], "bfloat16");
    }
}
