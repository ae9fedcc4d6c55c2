//! Layers with full attention whose keys and values have another shape than those of the others
//! (Gemma 4, MiMo, MiniMax-M3, Inkling 1 and 2, Dots3-Note), and layers that have none (Gemma 3n, Gemma 4).

use serde_json::Value;

/// Layers that cache keys and values of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayers {
    /// Layers with a cache of their own.
    pub layers: u64,
    /// KV heads; the ranks share them equally, or each is on several ranks.
    pub kv_heads: u64,
    /// Elements per KV head.
    pub head_dim: u64,
}

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const CHOOSING: &str = "minimax_m3_sparse";
const FAMILIES: [&str; 3] = [GEMMA_3N, "gemma4_text", "gemma4_unified_text"];
/// Whose layers with windows have fields of their own.
pub(crate) const INKLING: [&str; 2] = ["inkling_text", "inkling2_text"];
const DOTS3: [&str; 2] = ["dots3_note", "dots3_note_text"];
const GEMMA_3N: &str = "gemma3n_text"; // whose layers all have the same shape
const PERIOD_3N: usize = 5;
const SHARED_3N: u64 = 15;
const PERIOD: usize = 6; // of layers where config.json does not list them; the last one is full
const HEAD_DIM: u64 = 512; // where config.json does not say

impl KvLayers {
    /// Divides the `layers` of a model, in which all have this shape, into those with sliding
    /// windows, or a choice of blocks, and those with full attention. `None` for families that do not
    /// tell them apart.
    pub(crate) fn divided(self, config: &Value) -> Option<(Self, Self)> {
        let layers = choosing_layers(config);
        if layers > 0 && layers < self.layers {
            let full = Self {
                layers: self.layers - layers,
                ..self
            };
            return Some((Self { layers, ..self }, full));
        }
        let family = config.get("model_type")?.as_str()?;
        if family == "mimo_v2_flash" {
            return Some(self.divided_by_heads(config));
        }
        if INKLING.contains(&family) {
            return Some(self.divided_by_windows(config));
        }
        if DOTS3.contains(&family) {
            return self.divided_by_latents(config);
        }
        if !FAMILIES.contains(&family) {
            return None;
        }
        let number = |field| config.get(field).and_then(Value::as_u64);
        let all = usize::try_from(self.layers).ok()?;
        let alike = family == GEMMA_3N;
        let (shared, period, head_dim) = if alike {
            (SHARED_3N, PERIOD_3N, self.head_dim)
        } else {
            (0, PERIOD, HEAD_DIM)
        };
        let shared = number("num_kv_shared_layers").unwrap_or(shared);
        let own = all.saturating_sub(usize::try_from(shared).ok()?);
        let kinds = config.get("layer_types").and_then(Value::as_array);
        let is_full = |layer: usize| match kinds {
            _ if layer + 1 == all && !alike => true,
            Some(kinds) => kinds.get(layer).and_then(Value::as_str) == Some(FULL),
            None => (layer + 1).is_multiple_of(period),
        };
        let full_layers = (0..own).filter(|layer| is_full(*layer)).count();
        let first = (0..all).find(|layer| is_full(*layer))?;
        let same = config.get("attention_k_eq_v") == Some(&Value::Bool(true));
        let heads = number("num_global_key_value_heads").filter(|_| same);
        let mut full = Self {
            layers: full_layers as u64,
            kv_heads: heads.unwrap_or(self.kv_heads),
            head_dim: number("global_head_dim").unwrap_or(head_dim),
        };
        if let Some(sizes) = config.get("per_layer_config") {
            let size = |field| sizes.get(first.to_string())?.get(field)?.as_u64();
            full.kv_heads = size("num_key_value_heads").unwrap_or(self.kv_heads);
            full.head_dim = size("head_dim").unwrap_or(self.head_dim);
        }
        let others = Self {
            layers: (own - full_layers) as u64,
            ..self
        };
        Some((others, full))
    }

    /// Divides layers with windows, which have these KV heads, from those with full attention, which
    /// have half of them (MiMo). Published files list the kinds as 1 and 0.
    fn divided_by_heads(self, config: &Value) -> (Self, Self) {
        let listed = |field: &str| config.get(field).and_then(Value::as_array);
        let (kinds, numbers) = (listed("layer_types"), listed("hybrid_layer_pattern"));
        let is_full = |layer: usize| match (numbers, kinds) {
            (Some(numbers), _) => numbers.get(layer).and_then(Value::as_u64) == Some(0),
            (None, Some(kinds)) => kinds.get(layer).and_then(Value::as_str) == Some(FULL),
            (None, None) => layer == 0 || (layer + 1).is_multiple_of(PERIOD),
        };
        let all = usize::try_from(self.layers).unwrap_or(0);
        let layers = (0..all).filter(|layer| is_full(*layer)).count() as u64;
        let full = Self {
            layers,
            kv_heads: self.kv_heads / 2,
            ..self
        };
        let others = Self {
            layers: self.layers - layers,
            ..self
        };
        (others, full)
    }

    /// Divides layers with windows, which have this shape, from those without (Inkling). Published
    /// files list the numbers of the former.
    fn divided_by_windows(self, config: &Value) -> (Self, Self) {
        let listed = |field: &str| config.get(field).and_then(Value::as_array);
        let (kinds, windows) = (listed("layer_types"), listed("local_layer_ids"));
        let is_full = |layer: usize| match (kinds, windows) {
            (Some(kinds), _) => kinds.get(layer).and_then(Value::as_str) == Some("hybrid"),
            (None, Some(windows)) => !windows.contains(&Value::from(layer)),
            (None, None) => (layer + 1).is_multiple_of(PERIOD),
        };
        let all = usize::try_from(self.layers).unwrap_or(0);
        let layers = (0..all).filter(|layer| is_full(*layer)).count() as u64;
        let number = |field, default| config.get(field).and_then(Value::as_u64).unwrap_or(default);
        let full = Self {
            layers,
            kv_heads: number("num_key_value_heads", 8),
            head_dim: number("head_dim", 128),
        };
        let others = Self {
            layers: self.layers - layers,
            ..self
        };
        (others, full)
    }

    /// Divides layers with windows, whose rows of latents have a size of their own, from those
    /// without, which have this shape (Dots3-Note). `None` if no layer has a window.
    fn divided_by_latents(self, config: &Value) -> Option<(Self, Self)> {
        let kinds = config.get("layer_types").and_then(Value::as_array);
        let slides = config.get("use_sliding_window") != Some(&Value::Bool(false));
        let has_window = |layer: usize| match kinds {
            Some(kinds) => kinds.get(layer).and_then(Value::as_str) == Some(SLIDING),
            None => slides && layer > 1 && layer % 4 != 1,
        };
        let all = usize::try_from(self.layers).ok()?;
        let first = (0..all).find(|layer| has_window(*layer))?;
        let layers = (0..all).filter(|layer| has_window(*layer)).count() as u64;
        let full = Self {
            layers: self.layers - layers,
            ..self
        };
        let head_dim = sliding_row(config, first);
        let others = Self {
            layers,
            head_dim,
            ..self
        };
        Some((others, full))
    }

    /// Returns the KV heads of one of `tp` ranks. With more ranks than heads, several have the same
    /// head.
    pub fn rank_heads(&self, tp: u32) -> u64 {
        (self.kv_heads / u64::from(tp)).max(1)
    }
}

/// Returns the elements of a row of a layer with a window (Dots3-Note): a latent and a key that
/// rotates. Published files have fields for all such layers, others for each layer.
fn sliding_row(config: &Value, layer: usize) -> u64 {
    let number = |field: &str| config.get(field).and_then(Value::as_u64);
    let Some(sizes) = config.get("per_layer_config") else {
        let head = number("swa_head_dim").unwrap_or(256);
        let still = number("swa_qk_nope_head_dim").unwrap_or(192);
        let rotated = number("swa_qk_rope_head_dim").unwrap_or(head.saturating_sub(still));
        return number("swa_kv_lora_rank").unwrap_or(1024) + rotated;
    };
    let own = |field: &str| sizes.get(layer.to_string())?.get(field)?.as_u64();
    let size = |field: &str, default| own(field).or(number(field)).unwrap_or(default);
    size("kv_lora_rank", 512) + size("qk_rope_head_dim", 64)
}

/// Returns the number of layers whose KV heads choose blocks of tokens by index keys (MiniMax-M3).
/// Published files list them as 1 and 0.
pub(crate) fn choosing_layers(config: &Value) -> u64 {
    let kinds = config.get("layer_types").and_then(Value::as_array);
    let flags = config.pointer("/sparse_attention_config/sparse_attention_freq");
    let chosen = match (kinds, flags.and_then(Value::as_array)) {
        (Some(kinds), _) => kinds
            .iter()
            .filter(|kind| kind.as_str() == Some(CHOOSING))
            .count(),
        (None, Some(flags)) => flags.iter().filter(|flag| flag.as_u64() == Some(1)).count(),
        (None, None) => 0,
    };
    chosen as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const E2B: KvLayers = KvLayers {
        layers: 35,
        kv_heads: 1,
        head_dim: 256,
    };

    #[test]
    fn shared_layers_have_no_cache() {
        let kinds: Vec<&str> = (1..=35)
            .map(|n| {
                if n % 5 == 0 {
                    FULL
                } else {
                    "sliding_attention"
                }
            })
            .collect();
        let config = json!({
            "model_type": "gemma4_text", "num_kv_shared_layers": 20, "layer_types": kinds,
            "global_head_dim": 512,
        });
        let (sliding, full) = E2B.divided(&config).unwrap();
        assert_eq!((sliding.layers, sliding.head_dim), (12, 256));
        assert_eq!((full.layers, full.kv_heads, full.head_dim), (3, 1, 512));
    }

    #[test]
    fn layers_of_gemma_3n_have_one_shape() {
        let all = KvLayers {
            layers: 35,
            kv_heads: 2,
            head_dim: 256,
        };
        let (sliding, full) = all.divided(&json!({"model_type": "gemma3n_text"})).unwrap();
        assert_eq!((sliding.layers, full.layers), (16, 4)); // of the first 20
        assert_eq!((full.kv_heads, full.head_dim), (2, 256));
    }

    #[test]
    fn full_layers_of_mimo_have_half_as_many_heads() {
        let alike = KvLayers {
            layers: 12,
            kv_heads: 8,
            head_dim: 192,
        };
        let lists = [
            json!({}),
            json!({"layer_types": [FULL, "sliding_attention", FULL, FULL]}),
            json!({"hybrid_layer_pattern": [0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0]}),
        ];
        for mut config in lists {
            config["model_type"] = json!("mimo_v2_flash");
            let (sliding, full) = alike.divided(&config).unwrap();
            assert_eq!((sliding.layers, sliding.kv_heads), (9, 8));
            assert_eq!((full.layers, full.kv_heads, full.head_dim), (3, 4, 192));
        }
    }

    #[test]
    fn layers_that_choose_blocks_are_listed() {
        let alike = KvLayers {
            layers: 4,
            kv_heads: 4,
            head_dim: 128,
        };
        let flags =
            |flags: [u64; 4]| json!({"sparse_attention_config": {"sparse_attention_freq": flags}});
        let kinds = json!({"layer_types": [FULL, CHOOSING, CHOOSING, CHOOSING]});
        for config in [kinds, flags([0, 1, 1, 1])] {
            let (choosing, full) = alike.divided(&config).unwrap();
            assert_eq!((choosing.layers, full.layers), (3, 1));
            assert_eq!((full.kv_heads, full.head_dim), (4, 128));
        }
        for config in [flags([0; 4]), flags([1; 4])] {
            assert_eq!(alike.divided(&config), None);
        }
    }

    #[test]
    fn layers_of_inkling_with_windows_have_heads_of_their_own() {
        let alike = KvLayers {
            layers: 12,
            kv_heads: 16,
            head_dim: 64,
        };
        let windows: Vec<usize> = (0..12)
            .filter(|layer| *layer != 5 && *layer != 11)
            .collect();
        let kinds = (0..12).map(|layer| match layer {
            5 | 11 => "hybrid",
            _ => "hybrid_sliding",
        });
        let lists = [
            json!({}),
            json!({"layer_types": kinds.collect::<Vec<_>>(), "local_layer_ids": [1]}),
            json!({"layer_types": null, "local_layer_ids": windows}),
        ];
        let families = ["inkling_text", "inkling_text", "inkling2_text"];
        for (mut config, family) in lists.into_iter().zip(families) {
            config["model_type"] = json!(family);
            config["num_key_value_heads"] = json!(4);
            let (sliding, full) = alike.divided(&config).unwrap();
            assert_eq!((sliding.layers, sliding.kv_heads), (10, 16));
            assert_eq!(sliding.head_dim, 64);
            assert_eq!((full.layers, full.kv_heads, full.head_dim), (2, 4, 128));
        }
    }

    #[test]
    fn layers_of_dots3_with_windows_have_latents_of_their_own() {
        let alike = KvLayers {
            layers: 7,
            kv_heads: 1,
            head_dim: 704,
        };
        let kinds = ["full_attention", SLIDING, SLIDING, "indexed_attention"];
        let own = json!({"1": {"kv_lora_rank": 96}});
        for (mut config, layers, row) in [
            (json!({}), 4, 1088),
            (
                json!({"swa_kv_lora_rank": 256, "swa_head_dim": 224}),
                4,
                288,
            ),
            (json!({"swa_qk_rope_head_dim": 16}), 4, 1040),
            (json!({"layer_types": kinds}), 2, 1088),
            (
                json!({"layer_types": kinds, "per_layer_config": own}),
                2,
                160,
            ),
        ] {
            config["model_type"] = json!("dots3_note_text");
            let (sliding, full) = alike.divided(&config).unwrap();
            assert_eq!((sliding.layers, sliding.head_dim), (layers, row));
            assert_eq!((full.layers, full.head_dim), (7 - layers, 704));
        }
        let config = json!({"model_type": "dots3_note", "use_sliding_window": false});
        assert_eq!(alike.divided(&config), None);
    }

    #[test]
    fn full_layers_have_heads_of_their_own() {
        let large = KvLayers {
            layers: 60,
            kv_heads: 16,
            head_dim: 256,
        };
        let mut config = json!({
            "model_type": "gemma4_text", "attention_k_eq_v": true,
            "num_global_key_value_heads": 4,
        });
        let (sliding, full) = large.divided(&config).unwrap();
        assert_eq!((sliding.layers, sliding.kv_heads), (50, 16));
        assert_eq!((full.layers, full.kv_heads, full.head_dim), (10, 4, 512));
        config["attention_k_eq_v"] = json!(false);
        assert_eq!(large.divided(&config).unwrap().1.kv_heads, 16);
        config["per_layer_config"] = json!({"5": {"head_dim": 128, "num_key_value_heads": 2}});
        let full = large.divided(&config).unwrap().1;
        assert_eq!((full.layers, full.kv_heads, full.head_dim), (10, 2, 128));
        config["model_type"] = json!("gemma3_text");
        assert_eq!(large.divided(&config), None);
    }
}
