"""The fields of Inkling's config.json, as published or as transformers writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import Fields, Renamed, layered

DEFAULTS = {"vocab_size": 201024, "hidden_size": 6144, "num_hidden_layers": 66}
DEFAULTS |= {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
DEFAULTS |= {f"swa_{name}": DEFAULTS[name] for name in ("num_attention_heads", "head_dim")}
DEFAULTS |= {"swa_num_key_value_heads": 16, "sliding_window_size": 512, "rel_extent": 1024}
DEFAULTS |= {"d_rel": 16, "conv_kernel_size": 4, "max_position_embeddings": 131_072}
DEFAULTS |= {"intermediate_size": 24576, "moe_intermediate_size": 3072, "n_routed_experts": 256}
DEFAULTS |= {"num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 0}
# transformers' names of fields by published ones; the last is the one that other families have.
NAMES = {
    "sconv_kernel_size": "conv_kernel_size",
    "model_max_length": "max_position_embeddings",
    "embedding_multiplier": "logits_mup_width_multiplier",
    "sliding_window": "sliding_window_size",
    "num_local_experts": "n_routed_experts",
    "dense_mlp_idx": "first_k_dense_replace",
}
# Published files have the inner size of experts under the name of the dense layers' size.
SIZES = {
    "intermediate_size": "moe_intermediate_size",
    "dense_intermediate_size": "intermediate_size",
}
# Of layers that predict further tokens, of a cache of transformers, and what it does not read.
UNUSED = [
    *("num_mtp_layers", "chain_hidden_post_norm", "mtp_hidden_states_first", "mtp_local_layer_ids"),
    *("number_of_conv_states", "rms_norm_eps_moe_gate"),
]


def in_newer_fields(raw: Mapping[str, Any]) -> Fields:
    """The fields under transformers' names, with its defaults."""
    raw = layered(raw, DEFAULTS)
    # Without layers of a kind, sizes of that kind are not read.
    Fields(raw).ignore(*UNUSED, *DEFAULTS, "log_scaling_n_floor", "log_scaling_alpha")
    names = NAMES | (SIZES if raw.get("dense_intermediate_size") is not None else {})
    fields = Fields(layered(Renamed(raw, names), raw))
    fields.require("shared_expert_sink", True)
    return fields
