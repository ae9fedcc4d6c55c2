"""Nemotron-H: layers of Mamba-2, attention without position embeddings, or feed-forward alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock import config
from penstock.config import FULL, LINEAR, AttentionSpec, Fields, MlpSpec, MoeSpec
from penstock.models.decoder import Decoder
from penstock.weights import Names

NAMES = {"heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "groups": "n_groups"}
NAMES |= {"state": "ssm_state_size", "width": "conv_kernel"}
NAMES |= {"bias": "use_bias", "conv_bias": "use_conv_bias"}
DEFAULTS = {"heads": 128, "head_dim": 64, "groups": 8, "state": 128, "width": 4}
SIZES = {"num_key_value_heads": 8, "max_position_embeddings": 4096, "n_routed_experts": 8}
SIZES |= {"num_experts_per_tok": 2}
SIZES |= dict.fromkeys(("moe_intermediate_size", "moe_shared_expert_intermediate_size"), 7688)
# Of training, of transformers, of layers that may be missing; and what follows from others.
UNUSED = re.compile(
    r"time_step_(min|max|floor|rank)|rescale_prenorm_residual|expand|use_mamba_kernels|chunk_size|"
    r"num_(logits_to_keep|hidden_layers|experts_per_tok|nextn_predict_layers)|topk_group|n_group|"
    r"moe_((shared_expert_)?intermediate_size|shared_expert_overlap|latent_size)|mtp_.*|"
    r"n_(routed|shared)_experts|routed_scaling_factor|norm_topk_prob|(rms|layer)_norm_eps|"
    r"norm_eps|intermediate_size|rope_theta"
)
MAMBA = {"": "", ".in_proj": ".inputs", ".conv1d": ".convolution", ".norm": ".norm"}
MAMBA |= {".out_proj": ".output"}
ATTENTION = {f".{part}_proj": f".qkv.{part}" for part in "qkv"} | {".o_proj": ".out"}
DENSE = {".up_proj": ".inner.up", ".down_proj": ".down"}
MOE = {".gate": ".router", **{f".shared_experts{n}": f".shared{p}" for n, p in DENSE.items()}}
MOE |= {".fc1_latent_proj": ".experts.narrow.all", ".fc2_latent_proj": ".experts.widen.all"}


class NemotronH(Decoder):
    """Also Nemotron Nano 2 and Nemotron 3. A feed-forward layer is a part of the one before it."""

    ignored: tuple[str, ...] = (r"mtp\..*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> config.Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        head_dim = {"head_dim": raw.get("attention_head_dim", 128)}
        fields = Fields(config.layered(raw, head_dim, SIZES))
        fields.ignore(*filter(UNUSED.fullmatch, raw))
        fields.require("mamba_hidden_act", "silu")
        fields.require("mamba_ssm_cache_dtype", "float32")
        fields.require_unset("residual_in_fp32", "sliding_window", "attention_bias")
        norm = config.NormSpec(fields.number("layer_norm_epsilon", 1e-5))
        mamba = config.read_mamba(fields, norm, DEFAULTS, NAMES)
        mixers: dict[str, Any] = {LINEAR: mamba, FULL: config.read_attention(fields, None)}
        layers = config.read_pattern_layers(fields, mixers, "mlp_hidden_act")
        return config.read_decoder(fields, layers, config.read_residual(fields, norm=norm))

    @classmethod
    def checkpoint_names(cls, spec: config.Specification) -> Names:
        """A layer with a feed-forward part is two of the checkpoint's."""
        found = {"backbone.embeddings": "embedding", "backbone.norm_f": "norm", "lm_head": "head"}
        number = 0
        for index, layer in enumerate(spec.layers):
            attends = isinstance(layer.attention, AttentionSpec)
            parts = {"attention": ATTENTION if attends else MAMBA, "mlp": _mlp_names(layer.mlp)}
            for part, names in filter(lambda one: one[1], parts.items()):
                own, path = f"backbone.layers.{number}", f"blocks.{index}.{part}"
                found |= {f"{own}.mixer{name}": path + below for name, below in names.items()}
                found[f"{own}.norm"] = f"{path}_norm"
                number += 1
        return Names(found)


def _mlp_names(mlp: MlpSpec | MoeSpec | None) -> dict[str, str]:
    if not isinstance(mlp, MoeSpec):
        return DENSE if mlp else {}
    below = ".experts.experts" if mlp.latent else ".experts"
    numbered = [(f".experts.{i}", f"{below}.{i}") for i in range(mlp.experts)]
    found = {f"{name}.up_proj": f"{path}.gate_up.up" for name, path in numbered}
    return MOE | found | {f"{name}.down_proj": f"{path}.down" for name, path in numbered}
