"""Step 3.5 and 3.7 Flash, text: Laguna's attention with sigmoid gates, experts with limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import ExpertStorage, Specification, read_text_config
from penstock.models.decoder import (
    CORRECTION_PATH,
    EXPERT_NAMES,
    LLAMA_NAMES,
    QK_NORM_NAMES,
    SHARED_EXPERT_NAMES,
    Decoder,
)
from penstock.models.step3p5_config import read_step
from penstock.weights import Shapes

LAYER, EXPERTS = "model.layers.{}.", "blocks.{}.mlp.experts."
STACKED = ".moe.gate_proj."


class Step35(Decoder):
    """Step 3.5 Flash. A tensor holds a matrix of all experts, or each expert has its own."""

    names: ClassVar[Mapping[str, str]] = {
        **(LLAMA_NAMES | QK_NORM_NAMES),
        **{name.replace(".mlp.", ".moe."): path for name, path in EXPERT_NAMES.items()},
        **{
            name.replace("mlp.shared_experts", "share_expert"): path
            for name, path in SHARED_EXPERT_NAMES.items()
        },
        LAYER + "moe.gate_proj": EXPERTS + "gate_up.gate",
        LAYER + "moe.up_proj": EXPERTS + "gate_up.up",
        LAYER + "moe.down_proj": EXPERTS + "down",
        LAYER + "moe.router_bias": CORRECTION_PATH,
        LAYER + "self_attn.g_proj": "blocks.{}.attention.qkv.gate",
    }
    # As checkpoints of some tools have them.
    older: ClassVar[Mapping[str, str]] = {
        f"model.language_model.{part}.": f"model.{part}."
        for part in ("layers", "embed_tokens", "norm")
    }
    predicts_further = 3

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return read_step(raw)

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Finds out how the experts are stored."""
        if not any(STACKED in name for name in shapes):
            return spec
        return spec.with_experts(storage=ExpertStorage.STACKED_PARTS)


class Step37(Step35):
    """The text part of Step 3.7 Flash; requests cannot contain images."""

    ignored = (r"(model\.)?(vision_model|vit_large_projector|multi_modal_projector)\..*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))
