"""Nemotron-H: layers of Mamba-2, attention without position embeddings, or feed-forward alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.config import (
    FULL,
    LINEAR,
    AttentionSpec,
    Fields,
    NormSpec,
    Specification,
    layered,
    pair_layers,
    read_attention,
    read_decoder,
    read_mamba,
    read_mlp,
    read_pattern,
    read_residual,
)
from penstock.models.decoder import Decoder
from penstock.weights import Names

NAMES = {"heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "groups": "n_groups"}
NAMES |= {"state": "ssm_state_size", "width": "conv_kernel", "bias": "use_bias"}
NAMES |= {"conv_bias": "use_conv_bias"}
DEFAULTS = {"heads": 128, "head_dim": 64, "groups": 8, "state": 128, "width": 4}
SIZES = {"num_key_value_heads": 8, "max_position_embeddings": 4096}
# Of training, of transformers, of experts and of several tokens; and what follows from others.
UNUSED = re.compile(
    r"time_step_(min|max|floor|rank)|rescale_prenorm_residual|expand|use_mamba_kernels|chunk_size|"
    r"num_(logits_to_keep|hidden_layers|experts_per_tok)|moe_.*|n_(routed|shared)_experts|"
    r"routed_.*|norm_topk_prob|mtp_.*|(rms|layer)_norm_eps|rope_theta"
)
MAMBA = {"": "", ".in_proj": ".inputs", ".conv1d": ".convolution", ".norm": ".norm"}
MAMBA |= {".out_proj": ".output"}
ATTENTION = {f".{part}_proj": f".qkv.{part}" for part in "qkv"} | {".o_proj": ".out"}


class NemotronH(Decoder):
    """Nemotron-H and Nemotron Nano 2. Here, a feed-forward layer is a part of the one before it."""

    ignored: tuple[str, ...] = (r"mtp\..*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"head_dim": raw.get("attention_head_dim", 128)}, SIZES))
        fields.ignore(*filter(UNUSED.fullmatch, raw))
        fields.require("mamba_hidden_act", "silu")
        fields.require("mamba_ssm_cache_dtype", "float32")
        fields.require_unset("residual_in_fp32", "sliding_window", "attention_bias")
        norm = NormSpec(fields.number("layer_norm_epsilon", 1e-5))
        mamba = read_mamba(fields, norm, DEFAULTS, NAMES)
        mixers: dict[str, Any] = {LINEAR: mamba, FULL: read_attention(fields, None)}
        mlp = read_mlp(fields, "mlp_hidden_act", "relu2", bias=fields.flag("mlp_bias"), gated=False)
        layers = pair_layers(read_pattern(fields), mixers, mlp)
        return read_decoder(fields, layers, read_residual(fields, norm=norm))

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """A layer with a feed-forward part is two of the checkpoint's."""
        found = {"backbone.embeddings": "embedding", "backbone.norm_f": "norm", "lm_head": "head"}
        number = 0
        for index, layer in enumerate(spec.layers):
            own, path = f"backbone.layers.{number}", f"blocks.{index}"
            names = ATTENTION if isinstance(layer.attention, AttentionSpec) else MAMBA
            found |= {f"{own}.mixer{n}": f"{path}.attention{p}" for n, p in names.items()}
            found[f"{own}.norm"] = f"{path}.attention_norm"
            number += 1
            if layer.mlp is not None:
                own, number = f"backbone.layers.{number}", number + 1
                found[f"{own}.norm"] = f"{path}.mlp_norm"
                found[f"{own}.mixer.up_proj"] = f"{path}.mlp.inner.up"
                found[f"{own}.mixer.down_proj"] = f"{path}.mlp.down"
        return Names(found)
