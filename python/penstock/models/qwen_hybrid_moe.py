"""Qwen3-Next and the mixtures of experts of Qwen3.5 and 3.6, text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    ExpertStorage,
    Fields,
    MlpSpec,
    MoeSpec,
    ProjectionOrder,
    Specification,
    read_expert_count,
    read_gated,
    read_routing,
    read_sparse_layers,
    read_text_config,
)
from penstock.models.decoder import EXPERT_NAMES, VISION, with_images
from penstock.models.qwen2_moe import GATED_SHARED_NAMES, MLP, with_gated_shared
from penstock.models.qwen_hybrid import LINEAR, PATH, Qwen35Text
from penstock.weights import Shapes

STACKED = MLP + "experts.gate_up_proj"
STACKED_NAMES = {
    STACKED: "blocks.{}.mlp.experts.gate_up.weight",
    MLP + "experts.down_proj": "blocks.{}.mlp.experts.down.weight",
}
EXPERTS = {**EXPERT_NAMES, **GATED_SHARED_NAMES}


class Qwen35MoeText(Qwen35Text):
    """Every layer has experts and a shared expert with a gate. A tensor holds all experts, or each
    has its own."""

    names: ClassVar[Mapping[str, str]] = {**Qwen35Text.names, **EXPERTS, **STACKED_NAMES}

    @classmethod
    def mlps(cls, fields: Fields, layers: int) -> list[MlpSpec | MoeSpec]:
        """Returns the feed-forward layer of each layer."""
        expert = read_gated(fields, "moe_intermediate_size")
        routing = read_routing(fields, renormalise=fields.flag("norm_topk_prob", True))
        moe = with_gated_shared(fields, MoeSpec(read_expert_count(fields), expert, routing))
        sparse = read_sparse_layers(fields, layers)
        dense = moe if all(sparse) else read_gated(fields, "intermediate_size")
        return [moe if has_experts else dense for has_experts in sparse]

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Finds out how the experts are stored."""
        if not any(name.endswith(".experts.gate_up_proj") for name in shapes):
            return spec
        return spec.with_experts(storage=ExpertStorage.STACKED)


class Qwen35Moe(Qwen35MoeText):
    """The text part of checkpoints with images, which requests cannot contain."""

    names: ClassVar[Mapping[str, str]] = with_images(Qwen35MoeText.names)
    ignored = (*Qwen35MoeText.ignored, *VISION)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))


class Qwen3Next(Qwen35MoeText):
    """Qwen3-Next: the projections of each key head are stored together."""

    names: ClassVar[Mapping[str, str]] = {
        **{name: path for name, path in Qwen35MoeText.names.items() if ".in_proj_" not in name},
        LINEAR + ".in_proj_qkvz": PATH + ".inputs",
        LINEAR + ".in_proj_ba": PATH + ".head_inputs",
    }
    order = ProjectionOrder.BY_KEY_HEAD
