"""Falcon-H1: Mamba-2 and attention side by side in each layer, and factors of most outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, LayerSpec, Placement, Specification, layered
from penstock.faults import BadModel, Unsupported
from penstock.models.bamba import DEFAULTS, IGNORED, MAMBA_NAMES, Bamba
from penstock.models.decoder import Decoder

SIZES = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}
SIZES |= {"mamba_d_ssm": 1024}
FACTORS = {"mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1.0] * 5}
# Fields of the code that trained the models.
UNUSED = "attn_layer_indices", "attn_rotary_emb", "mamba_use_mlp", "mlp_expansion_factor"


class FalconH1(Decoder):
    """Falcon-H1 0.5B to 34B. A layer of the checkpoint is two here: Mamba-2, then attention."""

    names: ClassVar[Mapping[str, str]] = {
        **{name: path for name, path in Bamba.names.items() if name not in MAMBA_NAMES},
        **{name: path.replace("attention", "recurrent") for name, path in MAMBA_NAMES.items()},
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = config.with_head_dim(Fields(layered(raw, SIZES, FACTORS)))
        fields.ignore(*IGNORED, *UNUSED, "layer_types", "layers_block_type")
        residual = config.read_residual(fields, placement=Placement.BESIDE)
        bias, mamba_bias = fields.flag("attention_bias"), fields.flag("mamba_proj_bias")
        fields.require("projectors_bias", mamba_bias)
        entering = fields.positive("attention_in_multiplier", 1.0)
        factor = fields.positive("ssm_in_multiplier", 1.0)
        if (bias and entering != 1) or (mamba_bias and factor != 1):
            raise Unsupported(
                "config.json: attention_in_multiplier or ssm_in_multiplier with a bias of the "
                "projection is not supported"
            )
        rope = config.read_rope(fields)
        full = config.read_attention(fields, rope, qkv_bias=bias, output_bias=bias)
        scale = full.scale * fields.positive("key_multiplier", 1.0) * entering**2
        mamba = config.read_mamba(
            fields,
            residual.norm if fields.flag("mamba_rms_norm") else None,
            DEFAULTS,
            gate_first=not fields.flag("mamba_norm_before_gate", True),
            factors=tuple(factor * each for each in _factors(fields, "ssm_multipliers", 5)),
        )
        gate, down = _factors(fields, "mlp_multipliers", 2)
        scales: dict[str, Any] = {"gate_scale": gate, "output_scale": down}
        mlp = config.read_mlp(fields, "hidden_act", "silu", bias=fields.flag("mlp_bias"), **scales)
        leaving = entering * fields.positive("attention_out_multiplier", 1.0)
        pair = (
            LayerSpec(mamba, None, fields.positive("ssm_out_multiplier", 1.0)),
            LayerSpec(replace(full, scale=scale), mlp, leaving),
        )
        spec = config.read_decoder(fields, pair * fields.count("num_hidden_layers"), residual)
        return replace(
            spec,
            embedding_scale=fields.positive("embedding_multiplier", 1.0),
            logits_scale=fields.positive("lm_head_multiplier", 1.0),
        )


def _factors(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    found = fields.positives(name)
    if len(found) != count:
        raise BadModel(f"config.json: {name} must hold {count} numbers, found {list(found)}")
    return found
