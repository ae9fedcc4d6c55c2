"""GLM-4.5, GLM-4.5-Air, GLM-4.6 and GLM-4.7: sigmoid routing, a shared expert, dense first layers.

A checkpoint's layers after the last one predict several tokens; they are not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    NormSpec,
    QkNorm,
    Specification,
    layered,
    read_attention,
    read_corrected_moe,
    read_decoder,
    read_dense_first,
    read_residual,
    read_rope,
)
from penstock.models.decoder import EXPERT_NAMES, SHARED_EXPERT_NAMES, Decoder
from penstock.models.qwen import Qwen3


class Glm4Moe(Decoder):
    """GLM-4.5 and later."""

    names: ClassVar[Mapping[str, str]] = Qwen3.names | EXPERT_NAMES | SHARED_EXPERT_NAMES
    predicts_further = 1

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"partial_rotary_factor": 0.5}))
        norm = NormSpec(fields.number("rms_norm_eps", 1e-5))
        attention = read_attention(
            fields,
            read_rope(fields, partial=True),
            qkv_bias=fields.flag("attention_bias"),
            qk_norm=QkNorm(norm) if fields.flag("use_qk_norm") else None,
        )
        specs = read_dense_first(fields, attention, read_corrected_moe(fields))
        fields.require_at_most("num_nextn_predict_layers", 1)
        return read_decoder(fields, specs, read_residual(fields, norm=norm))
