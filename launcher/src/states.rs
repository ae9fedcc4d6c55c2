//! The recurrent layers of a model, and the memory that their states take.

use serde_json::Value;

use crate::values::Dtype;

/// States of the typical sequence: its own, and a checkpoint.
pub const TYPICAL_STATES: u64 = 2;
/// States that one sequence needs: its own, the checkpoint that it begins with or makes, and another
/// that is not yet confirmed.
pub const LEAST_STATES: u64 = 3;

/// Families with Gated DeltaNet.
const FAMILIES: [&str; 5] = [
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
];

/// The recurrent layers of a model (Gated DeltaNet). A sequence has a state in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// How many layers there are.
    pub layers: u64,
    /// Key heads; tensor parallelism must divide them.
    pub heads: u64,
    /// Inputs of the convolution that a layer keeps, in the model's dtype.
    inputs: u64,
    /// Elements that the delta rule has stored in a layer, in float32 or wider.
    memory: u64,
}

impl States {
    /// Reads the recurrent ones of a model's `layers` from config.json; `None` if there are none.
    pub fn of(config: &Value, layers: u64) -> Option<Self> {
        let family = config.get("model_type").and_then(Value::as_str)?;
        if !FAMILIES.contains(&family) {
            return None;
        }
        let size = |name, default| config.get(name).and_then(Value::as_u64).unwrap_or(default);
        let kinds = config.get("layer_types").and_then(Value::as_array);
        let recurrent = match kinds {
            Some(kinds) => kinds
                .iter()
                .filter(|kind| *kind == "linear_attention")
                .count() as u64,
            None => layers - layers / size("full_attention_interval", 4).max(1),
        };
        let key_heads = size("linear_num_key_heads", 16);
        let value_heads = size("linear_num_value_heads", 32);
        let key_dim = size("linear_key_head_dim", 128);
        let value_dim = size("linear_value_head_dim", 128);
        let channels = 2 * key_heads * key_dim + value_heads * value_dim;
        let kept = size("linear_conv_kernel_dim", 4).saturating_sub(1);
        (recurrent > 0).then_some(Self {
            layers: recurrent,
            heads: key_heads,
            inputs: channels * kept,
            memory: value_heads * key_dim * value_dim,
        })
    }

    /// Returns the bytes of one sequence's states on one of `tp` ranks.
    pub fn bytes(&self, dtype: Dtype, tp: u32) -> u64 {
        let memory = self.memory * dtype.bytes().max(4);
        self.layers * (self.inputs * dtype.bytes() + memory) / u64::from(tp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn states_of_qwen3_next_take_74_mib() {
        let config = json!({"model_type": "qwen3_next", "full_attention_interval": 4});
        let states = States::of(&config, 48).unwrap();
        assert_eq!((states.layers, states.heads), (36, 16));
        let layer = 32 * 128 * 128 * 4 + 3 * 8192 * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 36 * layer);
        assert_eq!(states.bytes(Dtype::Bfloat16, 4), 9 * layer);
    }

    #[test]
    fn kinds_of_layers_are_counted() {
        let mut config = json!({
            "model_type": "qwen3_5_text",
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        });
        assert_eq!(States::of(&config, 3).unwrap().layers, 2);
        config["layer_types"] = json!(["full_attention"]);
        assert_eq!(States::of(&config, 1), None);
        config["model_type"] = json!("llama");
        assert_eq!(States::of(&config, 1), None);
    }
}
