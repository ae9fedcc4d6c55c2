"""Reads config.json of Zamba2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import config
from penstock.config import HYBRID, Fields, LayerSpec, NormSpec, PlaceSpec, Specification, layered
from penstock.faults import Unsupported

MAMBA = {"heads": "n_mamba_heads", "head_dim": "mamba_headdim", "groups": "mamba_ngroups"}
MAMBA |= {"state": "mamba_d_state", "width": "mamba_d_conv", "bias": "add_bias_linear"}
DEFAULTS = {"heads": 8, "groups": 1, "state": 64, "width": 4}
SIZES = {"hidden_size": 2560, "num_hidden_layers": 54, "num_attention_heads": 32}
SIZES |= {"max_position_embeddings": 4096, "vocab_size": 32000, "tie_word_embeddings": True}
# Of training, and of how transformers runs the model; the least step is a bound of prompts alone.
RUNNING = "chunk_size", "num_logits_to_keep", "use_mamba_kernels", "use_mem_eff_path"
STEPS = "time_step_min", "time_step_max", "time_step_floor"
ROPE = "rope_parameters", "rope_theta"  # which a flag turns off
PLACES = (*range(6, 43, 6), 47, 51)  # the layers with transformers where the file has no list
LONG = 16384  # tokens of a sequence, where the flag of long contexts is set


def read_zamba2(raw: Mapping[str, Any]) -> Specification:
    """Reads the fields, with transformers' defaults. Raises BadModel."""
    fields = _with_derived(Fields(layered(raw, SIZES)))
    fields.ignore(*RUNNING, *STEPS, *ROPE)
    fields.require("use_conv_bias", True)
    fields.require("tie_word_embeddings", True)  # else transformers would share no weights
    residual = config.read_residual(fields, norm=NormSpec(fields.number("rms_norm_eps", 1e-5)))
    mamba = LayerSpec(config.read_mamba(fields, NormSpec(1e-5), DEFAULTS, MAMBA), None)
    number, sets, layers = 0, fields.count("num_mem_blocks", 1), []
    for kind in config.read_place_kinds(fields, PLACES):
        if kind == HYBRID:
            layers.append(_transformer(fields, number % sets, number))
            number += 1
        layers.append(mamba)
    return config.read_decoder(fields, layers, residual)


def _with_derived(fields: Fields) -> Fields:
    """The fields with those that follow from others. Raises BadModel if they do not."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    inner = fields.count("mamba_expand", 2) * hidden
    derived = {
        "attention_hidden_size": 2 * hidden,
        "attention_head_dim": 2 * hidden // heads,
        "head_dim": 2 * hidden // heads,
        "kv_channels": hidden // heads,
        "num_query_groups": heads,
        "mamba_headdim": inner // fields.count("n_mamba_heads", DEFAULTS["heads"]),
    }
    for name, value in derived.items():
        fields.require(name, value)
    fields.ignore("max_position_embeddings")  # the flag decides, as in transformers
    longer = {"max_position_embeddings": LONG} if fields.flag("use_long_context") else {}
    return Fields(layered(longer, derived, fields.raw, {"intermediate_size": 4 * hidden}))


def _transformer(fields: Fields, weights: int, number: int) -> LayerSpec:
    """A place of one of the shared transformers."""
    rope = config.read_rope(fields) if fields.flag("use_mem_rope") else None
    head_dim = fields.count("head_dim")
    attention = config.read_attention(fields, rope, scale=(head_dim / 2) ** -0.5)
    adapts = fields.flag("use_shared_attention_adapter")
    if adapts and attention.kv_heads != attention.heads:
        raise Unsupported(
            "config.json: use_shared_attention_adapter needs as many KV heads as query heads"
        )
    place = PlaceSpec(weights, number, fields.count("adapter_rank", 128), adapts)
    bias = fields.flag("add_bias_linear")
    return LayerSpec(
        attention, config.read_mlp(fields, "hidden_act", "gelu", bias=bias), place=place
    )
