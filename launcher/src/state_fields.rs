//! What families call the kinds and sizes of their recurrent layers in config.json.

use serde_json::Value;

/// The names of a family's fields, and the sizes that transformers assumes without them.
pub(crate) struct Mamba {
    pub(crate) heads: (&'static str, u64),
    pub(crate) head_dim: (&'static str, Option<u64>),
    pub(crate) groups: (&'static str, u64),
    pub(crate) state: (&'static str, u64),
    pub(crate) width: (&'static str, u64),
    pub(crate) expand: (&'static str, u64),
}

pub(crate) const GRANITE: Mamba = Mamba {
    heads: ("mamba_n_heads", 128),
    head_dim: ("mamba_d_head", None),
    groups: ("mamba_n_groups", 1),
    state: ("mamba_d_state", 256),
    width: ("mamba_d_conv", 4),
    expand: ("mamba_expand", 2),
};

pub(crate) const NEMOTRON: Mamba = Mamba {
    heads: ("mamba_num_heads", 128),
    head_dim: ("mamba_head_dim", Some(64)),
    groups: ("n_groups", 8),
    state: ("ssm_state_size", 128),
    width: ("conv_kernel", 4),
    expand: ("expand", 2),
};

pub(crate) const MAMBA2: Mamba = Mamba {
    heads: ("num_heads", 128),
    head_dim: ("head_dim", Some(64)),
    groups: ("n_groups", 8),
    state: ("state_size", 128),
    width: ("conv_kernel", 4),
    expand: ("expand", 2),
};

pub(crate) const ZAMBA2: Mamba = Mamba {
    heads: ("n_mamba_heads", 8),
    head_dim: ("mamba_headdim", None),
    groups: ("mamba_ngroups", 1),
    state: ("mamba_d_state", 64),
    ..GRANITE
};

/// The names of a family's fields of Mamba-1.
pub(crate) struct Channels {
    pub(crate) expand: &'static str,
    /// What counts instead of `expand` where it is there.
    pub(crate) channels: Option<&'static str>,
    pub(crate) state: &'static str,
    pub(crate) width: &'static str,
}

pub(crate) const JAMBA: Channels = Channels {
    expand: "mamba_expand",
    channels: None,
    state: "mamba_d_state",
    width: "mamba_d_conv",
};

pub(crate) const CHANNELS: Channels = Channels {
    expand: "expand",
    channels: Some("intermediate_size"),
    state: "state_size",
    width: "conv_kernel",
};

/// Returns how many of `layers` are recurrent in `RecurrentGemma`, whose config.json has a pattern
/// that is repeated.
pub(crate) fn griffin_layers(config: &Value, layers: u64) -> u64 {
    let kinds = config.get("block_types").and_then(Value::as_array);
    let pattern: Vec<bool> = match kinds {
        Some(kinds) => kinds.iter().map(|kind| kind == "recurrent").collect(),
        None => vec![true, true, false],
    };
    let length = (pattern.len() as u64).max(1);
    let rest = usize::try_from(layers % length).unwrap_or(0);
    let recurrent =
        |kinds: &[bool]| kinds.iter().filter(|is_recurrent| **is_recurrent).count() as u64;
    layers / length * recurrent(&pattern) + recurrent(&pattern[..rest])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::states::States;
    use crate::values::Dtype;

    #[test]
    fn patterns_of_griffin_are_repeated() {
        let mut config = json!({
            "model_type": "recurrent_gemma", "hidden_size": 2560, "num_attention_heads": 10,
        });
        let states = States::of(&config, 26).unwrap();
        assert_eq!((states.layers, states.attending(&config, 26)), (18, 8));
        let layer = 2560 * 4 + 3 * 2560 * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), 18 * layer);
        assert_eq!(states.bytes(Dtype::Bfloat16, 2), 18 * layer / 2);
        assert!(states.divides(5) && !states.divides(4));
        config["block_types"] = json!(["attention", "recurrent"]);
        config["lru_width"] = json!(1280);
        let states = States::of(&config, 5).unwrap();
        assert_eq!((states.layers, states.attending(&config, 5)), (2, 3));
        assert_eq!(states.bytes(Dtype::Bfloat16, 1), layer);
        config["block_types"] = json!(["attention"]);
        assert_eq!(States::of(&config, 5), None);
    }
}
