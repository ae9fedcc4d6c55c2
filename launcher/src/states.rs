//! The recurrent layers of a model, and the memory that their states take.

use serde_json::Value;

use crate::state_fields::{
    CHANNELS, Channels, GRANITE, JAMBA, MAMBA2, Mamba, NEMOTRON, ZAMBA2, griffin_layers,
};
use crate::values::Dtype;

/// States of the typical sequence: its own, and a checkpoint.
pub const TYPICAL_STATES: u64 = 2;
/// States that one sequence needs: its own, the checkpoint that it begins with or makes, and another
/// that is not yet confirmed.
pub const LEAST_STATES: u64 = 3;

/// The recurrent layers of a model. A sequence has a state in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// How many layers there are.
    pub layers: u64,
    /// What tensor parallelism must divide, by config.json's name or in words.
    pub shared: (&'static str, u64),
    /// Inputs of the convolution that a layer keeps, in the model's dtype; ranks share them.
    inputs: u64,
    /// Inputs of the convolution that groups of heads have in common, and the number of groups. With
    /// more ranks than groups, several ranks keep the same.
    grouped: (u64, u64),
    /// Elements that the recurrence has stored in a layer, in float32 or wider.
    memory: u64,
    /// Inputs of convolutions that every rank keeps, in all layers: of n-grams, of layers' outputs.
    whole: u64,
}

impl States {
    /// Reads the recurrent ones of a model's `layers` from config.json; `None` if there are none.
    pub fn of(config: &Value, layers: u64) -> Option<Self> {
        let states = match config.get("model_type").and_then(Value::as_str)? {
            "qwen3_next" | "qwen3_5" | "qwen3_5_text" | "qwen3_5_moe" | "qwen3_5_moe_text" => {
                Self::of_delta_net(config, layers, [16, 32, 128, 128])
            }
            "qwen4_exp" | "qwen4_exp_text" => {
                Self::of_delta_net(config, layers, [16, 32, 128, 128]).with_ngrams(config)
            }
            "olmo_hybrid" => Self::of_delta_net(config, layers, olmo_sizes(config)),
            "kimi_linear" => Self::of_kimi_delta(config, layers, layers.saturating_sub(1) / 4, 32),
            "glm5_next" | "glm5_next_text" => Self::of_kimi_delta(config, layers, layers / 4, 64),
            "bailing_hybrid" => Self::of_bailing(config, layers),
            "lfm2" | "lfm2_moe" => {
                let listed = config.get("full_attn_idxs").and_then(Value::as_array);
                let attending = listed.map_or(layers, |listed| listed.len() as u64);
                Self::of_short_convolutions(config, layers, attending, 3)
            }
            // Every second layer attends.
            "lfm3" => Self::of_short_convolutions(config, layers, layers.saturating_sub(1) / 2, 7),
            "bamba" | "falcon_h1" | "granitemoehybrid" => Self::of_mamba(config, layers, &GRANITE),
            "nemotron_h" => Self::of_mamba(config, layers, &NEMOTRON),
            "inkling_text" => Self::of_inkling(config, layers, [64, 16, 6144]),
            "inkling2_text" => Self::of_inkling(config, layers, [48, 8, 4608]),
            "zaya" => Self::of_cca(config, layers),
            "jamba" => {
                let attending = chosen(config, layers, 8);
                Self::of_channels(config, layers.saturating_sub(attending), &JAMBA)
            }
            // All layers are recurrent, also those with a transformer before them.
            "zamba" => Self {
                layers,
                ..Self::of_channels(config, layers, &JAMBA)
            },
            "falcon_mamba" | "mamba" => Self::of_channels(config, layers, &CHANNELS),
            "mamba2" => Self::of_mamba(config, layers, &MAMBA2),
            "recurrent_gemma" => Self::of_rg_lru(config, griffin_layers(config, layers)),
            "zamba2" => Self::of_mamba(config, layers, &ZAMBA2),
            "minimax" | "minimax_m1" | "minimax_text_01" => Self::of_lightning(config, layers),
            _ => return None,
        };
        (states.layers > 0).then_some(states)
    }

    /// `defaults`: heads of keys and of values, and the sizes of both.
    fn of_delta_net(config: &Value, layers: u64, defaults: [u64; 4]) -> Self {
        let size = |name, default| size(config, name, default);
        let interval = size("full_attention_interval", 4).max(1);
        let key_heads = size("linear_num_key_heads", defaults[0]);
        let value_heads = size("linear_num_value_heads", defaults[1]);
        let key_dim = size("linear_key_head_dim", defaults[2]);
        let value_dim = size("linear_value_head_dim", defaults[3]);
        let channels = 2 * key_heads * key_dim + value_heads * value_dim;
        let kept = size("linear_conv_kernel_dim", 4).saturating_sub(1);
        Self {
            layers: kinds(config, &["linear_attention"]).unwrap_or(layers - layers / interval),
            shared: ("linear_num_key_heads", key_heads),
            inputs: channels * kept,
            grouped: (0, 1),
            memory: value_heads * key_dim * value_dim,
            whole: 0,
        }
    }

    /// Adds the convolutions of Qwen4-Exp's n-grams, which read tokens `ngram_size` apart, of all
    /// residual streams. The few bytes of earlier tokens' ids are left out.
    fn with_ngrams(self, config: &Value) -> Self {
        let listed = config.get("ple_layer_ids").and_then(Value::as_array);
        let layers = listed.map_or(0, |listed| listed.len() as u64);
        let channels = size(config, "hc_count", 4) * size(config, "hidden_size", 2048);
        let kept = size(config, "ple_conv_kernel_size", 4).saturating_sub(1);
        let whole = layers * channels * kept * size(config, "ngram_size", 3);
        Self { whole, ..self }
    }

    /// Kimi Delta Attention; published files describe it in an object of its own. Where config.json
    /// does not say it: `attending`, how many layers attend, and the number of heads.
    fn of_kimi_delta(config: &Value, layers: u64, attending: u64, heads: u64) -> Self {
        let none = Value::Null;
        let own = config.get("linear_attn_config").unwrap_or(&none);
        let either = |name, other, default| size(own, name, size(config, other, default));
        let heads = either("num_heads", "linear_num_heads", heads);
        let head_dim = either("head_dim", "linear_head_dim", 128);
        let width = either("short_conv_kernel_size", "linear_conv_kernel_dim", 4);
        let listed = own.get("kda_layers").and_then(Value::as_array);
        let listed = listed.map(|listed| listed.len() as u64);
        let layers = kinds(config, &["linear_attention"])
            .or(listed)
            .unwrap_or(layers - attending);
        Self::with_channel_decays(layers, heads, head_dim, width)
    }

    /// Ling 3.0: as many heads as attention has.
    fn of_bailing(config: &Value, layers: u64) -> Self {
        let period = size(config, "layer_group_size", 6).max(1);
        let heads = size(config, "num_attention_heads", 32);
        let head_dim = size(config, "linear_head_dim", size(config, "head_dim", 128));
        let width = size(config, "short_conv_kernel_size", 4);
        let layers = kinds(config, &["linear_attention"]).unwrap_or(layers - layers / period);
        Self::with_channel_decays(layers, heads, head_dim, width)
    }

    /// Kimi Delta Attention in this many `layers`.
    fn with_channel_decays(layers: u64, heads: u64, head_dim: u64, width: u64) -> Self {
        Self {
            layers,
            shared: ("the number of heads of linear attention", heads),
            inputs: 3 * heads * head_dim * width.saturating_sub(1),
            grouped: (0, 1),
            memory: heads * head_dim * head_dim,
            whole: 0,
        }
    }

    /// Where config.json does not say it: `attending`, how many layers attend, and `width`, of the
    /// convolution.
    fn of_short_convolutions(config: &Value, layers: u64, attending: u64, width: u64) -> Self {
        let channels = size(config, "hidden_size", 2560);
        Self {
            layers: kinds(config, &["conv"]).unwrap_or(layers.saturating_sub(attending)),
            shared: ("hidden_size", channels),
            inputs: channels * size(config, "conv_L_cache", width).saturating_sub(1),
            grouped: (0, 1),
            memory: 0,
            whole: 0,
        }
    }

    /// Convolutions of keys and values, here those of layers with windows, and of two outputs. Query
    /// heads, KV heads and the hidden size have defaults.
    fn of_inkling(config: &Value, layers: u64, defaults: [u64; 3]) -> Self {
        let [queries, heads, hidden] = defaults;
        let width = size(config, "sconv_kernel_size", 4);
        let kept = size(config, "conv_kernel_size", width).saturating_sub(1);
        let heads = size(config, "swa_num_key_value_heads", heads);
        let channels = 2 * heads * size(config, "swa_head_dim", 128);
        Self {
            layers,
            shared: (
                "num_attention_heads",
                size(config, "num_attention_heads", queries),
            ),
            inputs: 0,
            grouped: (channels * kept, heads),
            memory: 0,
            whole: layers * 2 * size(config, "hidden_size", hidden) * kept,
        }
    }

    /// Two convolutions of queries and keys, and values of the token before, in ZAYA1's attention.
    /// A rank has all queries of its KV heads.
    fn of_cca(config: &Value, layers: u64) -> Self {
        let size = |name, default| size(config, name, default);
        let heads = size("num_attention_heads", 8);
        let kv_heads = size("num_key_value_heads", 2).max(1);
        let head_dim = size("head_dim", 128);
        let widths = [size("cca_time0", 2), size("cca_time1", 2)];
        let kept = widths[0].max(widths[1]).max(2) - 1;
        // What the second convolution reads of the tokens before, it keeps for each of them.
        let channels = (heads + kv_heads) * head_dim * widths[1] + kv_heads * head_dim;
        Self {
            layers,
            shared: ("num_attention_heads", heads),
            inputs: 0,
            grouped: (channels * kept, kv_heads),
            memory: 0,
            whole: 0,
        }
    }

    fn of_mamba(config: &Value, layers: u64, names: &Mamba) -> Self {
        let size = |(name, default)| size(config, name, default);
        let heads = size(names.heads);
        let expanded = size(names.expand) * size(("hidden_size", 4096));
        let expanded = size(("mamba_d_ssm", expanded));
        let head_dim = size((
            names.head_dim.0,
            names.head_dim.1.unwrap_or(expanded / heads.max(1)),
        ));
        let (groups, state) = (size(names.groups), size(names.state));
        let kept = size(names.width).saturating_sub(1);
        let pattern = config
            .get("hybrid_override_pattern")
            .and_then(Value::as_str);
        let of_pattern = pattern.map(|pattern| pattern.matches('M').count() as u64);
        let attending = config.get("attn_layer_indices").and_then(Value::as_array);
        let attending = attending.map_or(0, |layers| layers.len() as u64);
        Self {
            layers: kinds(config, &["linear_attention", "mamba", BOTH])
                .or(of_pattern)
                .unwrap_or(layers.saturating_sub(attending)),
            shared: (names.heads.0, heads),
            inputs: heads * head_dim * kept,
            grouped: (2 * groups * state * kept, groups.max(1)),
            memory: heads * head_dim * state,
            whole: 0,
        }
    }

    /// Mamba-1: a state per channel. `layers`: the recurrent ones, where config.json does not list
    /// the kinds.
    fn of_channels(config: &Value, layers: u64, names: &Channels) -> Self {
        let expanded = size(config, names.expand, 2) * size(config, "hidden_size", 4096);
        let channels = names
            .channels
            .map_or(expanded, |name| size(config, name, expanded));
        Self {
            layers: kinds(config, &["linear_attention"]).unwrap_or(layers),
            shared: ("the number of Mamba channels", channels),
            inputs: channels * size(config, names.width, 4).saturating_sub(1),
            grouped: (0, 1),
            memory: channels * size(config, names.state, 16),
            whole: 0,
        }
    }

    /// RG-LRU: a number per channel in this many `layers`.
    fn of_rg_lru(config: &Value, layers: u64) -> Self {
        let channels = size(config, "lru_width", size(config, "hidden_size", 2560));
        Self {
            layers,
            shared: (
                "num_attention_heads",
                size(config, "num_attention_heads", 10),
            ),
            inputs: channels * size(config, "conv1d_width", 4).saturating_sub(1),
            grouped: (0, 1),
            memory: channels,
            whole: 0,
        }
    }

    /// Kinds are words in transformers' files, numbers in published ones: 0 is recurrent.
    fn of_lightning(config: &Value, layers: u64) -> Self {
        let heads = size(config, "num_attention_heads", 32);
        let shared = size(config, "hidden_size", 4096) / heads.max(1);
        let head_dim = size(config, "head_dim", shared);
        let numbers = config.get("attn_type_list").and_then(Value::as_array);
        let of_numbers =
            numbers.map(|list| list.iter().filter(|kind| kind.as_u64() == Some(0)).count() as u64);
        Self {
            layers: kinds(config, &["linear_attention"])
                .or(of_numbers)
                .unwrap_or(layers / 2),
            shared: ("num_attention_heads", heads),
            inputs: 0,
            grouped: (0, 1),
            memory: heads * head_dim * head_dim,
            whole: 0,
        }
    }

    /// Returns those of a model's `layers` that cache keys and values: not those that are a
    /// feed-forward layer alone.
    pub fn attending(&self, config: &Value, layers: u64) -> u64 {
        let pattern = config
            .get("hybrid_override_pattern")
            .and_then(Value::as_str);
        let model_type = config.get("model_type").and_then(Value::as_str);
        let other = match model_type {
            Some("falcon_h1" | "zaya") => layers, // each has both
            // The third one, and those that follow it in periods.
            Some("zamba") => 1 + chosen(config, layers.saturating_sub(3), 6),
            Some("zamba2") => layers / 6, // of the default list
            _ => layers.saturating_sub(self.layers),
        };
        kinds(
            config,
            &[
                "full_attention",
                "sliding_attention",
                "indexed_attention",
                "attention",
                BOTH,
                "hybrid_sliding",
            ],
        )
        .or(pattern.map(|pattern| pattern.matches('*').count() as u64))
        .unwrap_or(other)
    }

    /// Returns whether `ranks` can share the heads equally.
    pub fn divides(&self, ranks: u64) -> bool {
        let (_, groups) = self.grouped;
        self.shared.1.is_multiple_of(ranks)
            && (self.grouped.0 == 0 || groups.is_multiple_of(ranks) || ranks.is_multiple_of(groups))
    }

    /// Returns the bytes of one sequence's states on one of `tp` ranks.
    pub fn bytes(&self, dtype: Dtype, tp: u32) -> u64 {
        let ranks = u64::from(tp);
        let grouped = self.grouped.0 / self.grouped.1.min(ranks);
        let inputs = (self.inputs / ranks + grouped) * dtype.bytes();
        let own = self.layers * (inputs + self.memory / ranks * dtype.bytes().max(4));
        own + self.whole * dtype.bytes()
    }
}

/// Returns whether all layers of a model are recurrent.
pub fn are_all(config: &Value) -> bool {
    let model_type = config.get("model_type").and_then(Value::as_str);
    matches!(model_type, Some("falcon_mamba" | "mamba" | "mamba2"))
}

/// The kind of a layer with attention and Mamba, side by side or one after the other.
const BOTH: &str = "hybrid";

fn size(config: &Value, name: &str, default: u64) -> u64 {
    config.get(name).and_then(Value::as_u64).unwrap_or(default)
}

/// Returns how many of a model's `layers` have attention by config.json: one of each period.
fn chosen(config: &Value, layers: u64, period: u64) -> u64 {
    let period = size(config, "attn_layer_period", period).max(1);
    let first = size(config, "attn_layer_offset", 4);
    let step = usize::try_from(period).unwrap_or(usize::MAX);
    (first..layers).step_by(step).count() as u64
}

/// Returns heads and sizes of OLMo Hybrid's keys and values where config.json lacks them.
fn olmo_sizes(config: &Value) -> [u64; 4] {
    let heads = size(config, "num_attention_heads", 30);
    let key_heads = size(config, "linear_num_key_heads", heads);
    let quarters = 4 * key_heads.max(1);
    let key_dim = 3 * size(config, "hidden_size", 3840) / quarters;
    let key_dim = size(config, "linear_key_head_dim", key_dim);
    [heads, heads, key_dim, 2 * key_dim]
}

/// Returns the kind of each layer, if config.json lists the kinds.
pub fn listed_kinds(config: &Value) -> Option<&Vec<Value>> {
    let lists = ["layer_types", "layers_block_type"];
    lists.iter().find_map(|name| config.get(*name)?.as_array())
}

/// Returns the number of layers of these kinds, if config.json lists the kinds.
fn kinds(config: &Value, wanted: &[&str]) -> Option<u64> {
    let found = listed_kinds(config)?.iter().filter_map(Value::as_str);
    Some(found.filter(|kind| wanted.contains(kind)).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn states_of_qwen3_next_take_74_mib() {
        let config = json!({"model_type": "qwen3_next", "full_attention_interval": 4});
        let states = States::of(&config, 48).unwrap();
        assert_eq!((states.layers, states.shared.1), (36, 16));
        let layer = 32 * 128 * 128 * 4 + 3 * 8192 * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 36 * layer);
        assert_eq!(states.bytes(Dtype::Bfloat16, 4), 9 * layer);
    }

    #[test]
    fn every_rank_keeps_the_inputs_of_ngrams() {
        let mut config = json!({
            "model_type": "qwen4_exp_text", "hidden_size": 2048, "ple_layer_ids": [2, 5],
            "layer_types": ["linear_attention", "linear_attention", "indexed_attention"],
        });
        let states = States::of(&config, 3).unwrap();
        assert_eq!((states.layers, states.attending(&config, 3)), (2, 1));
        let layer = 32 * 128 * 128 * 4 + 3 * 8192 * 2;
        let ngrams = 2 * 4 * 2048 * 9 * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 2 * layer + ngrams);
        assert_eq!(states.bytes(Dtype::Bfloat16, 4), 2 * layer / 4 + ngrams);
        config["ple_layer_ids"] = json!(null);
        let states = States::of(&config, 3).unwrap();
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 2 * layer);
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

    #[test]
    fn short_convolutions_keep_inputs_alone() {
        let config = json!({
            "model_type": "lfm2", "hidden_size": 2048, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        });
        let states = States::of(&config, 16).unwrap();
        assert_eq!(states.layers, 10);
        assert_eq!(states.bytes(Dtype::Bfloat16, 2), 10 * 2 * 1024 * 2);
    }

    #[test]
    fn layers_with_windows_have_attention() {
        let config = json!({
            "model_type": "lfm3", "hidden_size": 2048, "conv_L_cache": 7,
            "layer_types": ["conv", "full_attention", "conv", "sliding_attention"],
        });
        let states = States::of(&config, 4).unwrap();
        assert_eq!((states.layers, states.attending(&config, 4)), (2, 2));
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 2 * 6 * 2048 * 2);
    }

    #[test]
    fn families_have_sizes_of_their_own() {
        let lfm = json!({"model_type": "lfm3", "hidden_size": 2048});
        let states = States::of(&lfm, 24).unwrap();
        assert_eq!((states.layers, states.attending(&lfm, 24)), (13, 11));
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 13 * 6 * 2048 * 2);
        let olmo = json!({
            "model_type": "olmo_hybrid", "hidden_size": 3840, "num_attention_heads": 30,
        });
        let states = States::of(&olmo, 32).unwrap();
        assert_eq!(states.shared, ("linear_num_key_heads", 30));
        assert_eq!(states.memory, 30 * 96 * 192);
        assert!(states.divides(3) && !states.divides(4));
    }

    #[test]
    fn kimi_linear_describes_its_states_in_an_object() {
        let mut config = json!({
            "model_type": "kimi_linear", "linear_attn_config": {
                "full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7], "head_dim": 64,
                "num_heads": 16, "short_conv_kernel_size": 3,
            },
        });
        let states = States::of(&config, 8).unwrap();
        assert_eq!((states.layers, states.attending(&config, 8)), (6, 2));
        let rank = 4 * 64 * 64 * 4 + 3 * 256 * 2 * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 4), 6 * rank);
        config["linear_attn_config"] = json!(null);
        let states = States::of(&config, 9).unwrap();
        assert_eq!((states.layers, states.attending(&config, 9)), (7, 2));
        assert_eq!(states.memory, 32 * 128 * 128);
    }

    #[test]
    fn layers_of_glm_5_next_are_linear_or_indexed() {
        let mut config = json!({"model_type": "glm5_next_text"});
        let states = States::of(&config, 45).unwrap();
        assert_eq!((states.layers, states.attending(&config, 45)), (34, 11));
        assert_eq!(states.memory, 64 * 128 * 128);
        config["layer_types"] = json!(["linear_attention", "indexed_attention"]);
        let states = States::of(&config, 2).unwrap();
        assert_eq!((states.layers, states.attending(&config, 2)), (1, 1));
    }

    #[test]
    fn ling_has_as_many_recurrent_heads_as_heads_of_attention() {
        let config = json!({"model_type": "bailing_hybrid", "num_attention_heads": 16});
        let states = States::of(&config, 42).unwrap();
        assert_eq!((states.layers, states.attending(&config, 42)), (35, 7));
        assert_eq!(states.memory, 16 * 128 * 128);
    }

    #[test]
    fn ranks_keep_the_groups_of_mamba_that_they_do_not_share() {
        let config = json!({
            "model_type": "granitemoehybrid", "hidden_size": 1536, "mamba_n_heads": 48,
            "mamba_d_head": "auto", "mamba_d_state": 128, "layer_types": ["mamba", "attention"],
        });
        let states = States::of(&config, 2).unwrap();
        let memory = 48 * 64 * 128 * 4;
        assert_eq!(
            states.bytes(Dtype::Bfloat16, 1),
            memory + 3 * (3072 + 256) * 2
        );
        assert_eq!(
            states.bytes(Dtype::Bfloat16, 2),
            memory / 2 + 3 * (1536 + 256) * 2
        );
        assert!(states.divides(16) && !states.divides(5));
        assert_eq!(states.attending(&config, 2), 1);
    }

    #[test]
    fn indices_are_layers_with_attention() {
        let config = json!({"model_type": "bamba", "attn_layer_indices": [9, 18, 27]});
        let states = States::of(&config, 32).unwrap();
        assert_eq!((states.layers, states.attending(&config, 32)), (29, 3));
    }

    #[test]
    fn one_layer_of_each_period_attends() {
        let mut config = json!({
            "model_type": "jamba", "hidden_size": 4096, "attn_layer_period": 8,
            "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
        });
        let states = States::of(&config, 32).unwrap();
        assert_eq!((states.layers, states.attending(&config, 32)), (28, 4));
        let layer = 8192 * 16 * 4 + 3 * 8192 * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 28 * layer);
        assert_eq!(states.bytes(Dtype::Bfloat16, 8), 28 * layer / 8);
        assert!(states.divides(8) && !states.divides(3));
        config["attn_layer_period"] = json!(14);
        config["attn_layer_offset"] = json!(13);
        let states = States::of(&config, 28).unwrap();
        assert_eq!((states.layers, states.attending(&config, 28)), (26, 2));
    }

    #[test]
    fn all_layers_may_be_recurrent() {
        let mut config = json!({
            "model_type": "falcon_mamba", "expand": 16, "hidden_size": 4096,
            "intermediate_size": 8192, "state_size": 16, "conv_kernel": 4,
        });
        let states = States::of(&config, 64).unwrap();
        assert_eq!((states.layers, states.attending(&config, 64)), (64, 0));
        let layer = 8192 * 16 * 4 + 3 * 8192 * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 64 * layer);
        assert!(are_all(&config) && states.divides(8) && !states.divides(3));
        config["model_type"] = json!("mamba");
        config["intermediate_size"] = json!(null);
        assert_eq!(States::of(&config, 64).unwrap().shared.1, 65_536);
        // Codestral Mamba 7B.
        let config = json!({"model_type": "mamba2", "num_heads": 128, "hidden_size": 4096});
        let states = States::of(&config, 64).unwrap();
        let layer = 128 * 64 * 128 * 4 + 3 * (8192 + 2 * 8 * 128) * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 64 * layer);
        assert_eq!((states.layers, states.shared), (64, ("num_heads", 128)));
        assert!(are_all(&config) && !are_all(&json!({"model_type": "jamba"})));
    }

    #[test]
    fn layers_may_have_attention_and_states() {
        let mut config = json!({
            "model_type": "falcon_h1", "hidden_size": 2048, "mamba_d_ssm": 3072,
            "mamba_n_heads": 48, "mamba_d_head": "auto", "mamba_d_state": 256,
        });
        let states = States::of(&config, 24).unwrap();
        assert_eq!((states.layers, states.attending(&config, 24)), (24, 24));
        let layer = 48 * 64 * 256 * 4 + 3 * (3072 + 2 * 256) * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 24 * layer);
        config["layers_block_type"] = json!(["hybrid", "hybrid"]);
        let states = States::of(&config, 2).unwrap();
        assert_eq!((states.layers, states.attending(&config, 2)), (2, 2));
    }

    #[test]
    fn lightning_attention_keeps_matrices_alone() {
        let mut config = json!({
            "model_type": "minimax_m1", "attn_type_list": [0, 0, 0, 1], "hidden_size": 6144,
            "num_attention_heads": 64, "head_dim": 128,
        });
        let states = States::of(&config, 4).unwrap();
        assert_eq!((states.layers, states.attending(&config, 4)), (3, 1));
        assert_eq!(states.bytes(Dtype::Bfloat16, 8), 3 * 8 * 128 * 128 * 4);
        assert!(states.divides(8) && !states.divides(3));
        config["model_type"] = json!("minimax"); // also MiniMax-M2's, all of whose layers attend
        config["attn_type_list"] = json!([1, 1, 1, 1]);
        assert_eq!(States::of(&config, 4), None);
        config["layer_types"] = json!(["linear_attention", "full_attention"]);
        assert_eq!(States::of(&config, 2).unwrap().layers, 1);
    }

    #[test]
    fn letters_are_kinds_of_layers() {
        let config = json!({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M-"});
        let states = States::of(&config, 7).unwrap();
        assert_eq!((states.layers, states.attending(&config, 7)), (3, 1));
    }
}
