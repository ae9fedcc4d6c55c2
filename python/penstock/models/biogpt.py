"""BioGPT: OPT's layers and positions, scaled embeddings, GELU without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    NormKind,
    NormSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_mlp,
    read_residual,
)
from penstock.models.decoder import Decoder
from penstock.models.opt import Opt

ROOT = "model.decoder."  # of OPT's names


class BioGpt(Decoder):
    """BioGPT and BioGPT-Large."""

    names: ClassVar[Mapping[str, str]] = {
        name.replace(ROOT, "biogpt."): path
        for name, path in Opt.names.items()
        if path not in ("norm", "head")
    } | {
        "biogpt.layer_norm": "norm",
        "output_projection": "head",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"tie_word_embeddings": True}))
        # The published code gives no eps to its norms, whatever config.json says.
        fields.ignore("layer_norm_eps", "layerdrop")
        norm = NormSpec(1e-5, NormKind.LAYER, bias=True)
        attention = read_attention(fields, None, qkv_bias=True, output_bias=True)
        mlp = read_mlp(fields, "hidden_act", "gelu", bias=True, gated=False)
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        residual = read_residual(fields, norm=norm)
        scale = residual.hidden**0.5 if fields.flag("scale_embedding", True) else 1.0
        changes = {"embedding_scale": scale, "learned_positions": True, "position_offset": 2}
        return read_decoder(fields, layers, residual, **changes)
