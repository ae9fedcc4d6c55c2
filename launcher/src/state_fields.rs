//! What families call the sizes of their Mamba layers in config.json.

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
