"""The fields of Inkling 2's config.json under the names that transformers writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import Fields, Renamed, layered
from penstock.models.inkling_fields import UNUSED

DEFAULTS = {"vocab_size": 201024, "unpadded_vocab_size": 200058, "hidden_size": 4608}
DEFAULTS |= {"num_hidden_layers": 48, "max_position_embeddings": 1 << 20}
DEFAULTS |= {"num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128}
DEFAULTS |= {f"swa_{name}": DEFAULTS[name] for name in ("num_attention_heads", "head_dim")}
DEFAULTS |= {"swa_num_key_value_heads": 8, "sliding_window_size": 1024, "rel_extent": 1024}
DEFAULTS |= {"d_rel": 16, "conv_kernel_size": 4, "moe_intermediate_size": 2304}
DEFAULTS |= {"n_routed_experts": 384, "num_experts_per_tok": 8, "log_scaling_n_floor": 128_000}
DEFAULTS |= {"n_layers_per_attn_res_block": 6}
# Other names of fields, which transformers reads too.
NAMES = {
    "sconv_kernel_size": "conv_kernel_size",
    "model_max_length": "max_position_embeddings",
    "sliding_window": "sliding_window_size",
    "num_local_experts": "n_routed_experts",
    "intermediate_size": "moe_intermediate_size",
    "routed_scaling_factor": "route_scale",
}


def in_newer_fields(raw: Mapping[str, Any]) -> Fields:
    """The fields under transformers' names, with its defaults."""
    given = layered(raw, DEFAULTS)
    # Without layers of a kind, sizes of that kind are not read.
    Fields(given).ignore(*UNUSED, *DEFAULTS, "log_scaling_alpha")
    found = Renamed(raw, NAMES)
    return Fields(layered(found, given))
