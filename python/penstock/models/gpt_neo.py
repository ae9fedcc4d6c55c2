"""GPT-Neo: GPT-2 with windows in half of its layers, and scores without a factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, LayerSpec, Specification
from penstock.faults import BadModel
from penstock.models.decoder import Decoder

LAYER, KINDS = "transformer.h.{}.", ("global", "local")
# Its names of fields, and GPT-2's.
NAMES = {"intermediate_size": "n_inner", "num_heads": "n_head", "num_layers": "n_layer"}


class GptNeo(Decoder):
    """GPT-Neo 125M, 1.3B and 2.7B."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.wte": "embedding",
        "transformer.wpe": "positions",
        LAYER + "ln_1": "blocks.{}.attention_norm",
        LAYER + "attn.attention.q_proj": "blocks.{}.attention.qkv.q",
        LAYER + "attn.attention.k_proj": "blocks.{}.attention.qkv.k",
        LAYER + "attn.attention.v_proj": "blocks.{}.attention.qkv.v",
        LAYER + "attn.attention.out_proj": "blocks.{}.attention.out",
        LAYER + "ln_2": "blocks.{}.mlp_norm",
        LAYER + "mlp.c_fc": "blocks.{}.mlp.inner.up",
        LAYER + "mlp.c_proj": "blocks.{}.mlp.down",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    }
    ignored = (r"transformer\.h\.\d+\.attn\.attention\.(masked_)?bias",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        found = config.Renamed(raw, NAMES)
        fields = config.read_gpt_names(config.layered(found, raw))
        fields.ignore("classifier_dropout", "embed_dropout", "resid_dropout")
        layers = fields.count("num_hidden_layers")
        kinds, window = _kinds(fields, layers), fields.count("window_size", 256)
        full = config.read_attention(fields, None, scale=1.0, output_bias=True)
        mlp = config.read_mlp(fields, "activation_function", "gelu_new", bias=True, gated=False)
        specs = [LayerSpec(replace(full, window=window * (kind == "local")), mlp) for kind in kinds]
        norm = config.read_layer_norm(fields, "layer_norm_epsilon")
        residual = config.read_residual(fields, norm=norm)
        return config.read_decoder(fields, specs, residual, learned_positions=True)


def _kinds(fields: Fields, layers: int) -> list[str]:
    """Each layer's kind: of `attention_types`, pairs of kinds and how often they follow."""
    found: list[str] = []
    try:
        for kinds, times in fields.raw.get("attention_types") or [[KINDS, 12]]:
            found += [*kinds] * min(times, layers)
    except (TypeError, ValueError):
        found = []
    listed = fields.raw.get("attention_layers") or found  # the same once more
    if len(found) != layers or listed != found or not set(found) <= set(KINDS):
        raise BadModel(
            f"config.json: attention_types must give global or local for each of {layers} layers, "
            f"found {fields.raw.get('attention_types')!r}"
        )
    return found
