"""A.X K1: DeepSeek-V3 with a norm of what layers with experts yield."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from penstock.config import Fields, MoeSpec, RouterSpec, Specification, layered
from penstock.layers import Block, Build, Residual, norm_of
from penstock.layers.attention import StepContext
from penstock.models.deepseek import DeepseekV3
from penstock.models.glm4_moe_lite import Glm4MoeLite
from penstock.weights import Shapes

NORM = "model.layers.{}.post_mlp_layernorm"
CORRECTION = "e_score_correction_bias"
FLAGS = ("norm_topk_prob", "rope_interleave")
DEFAULTS = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}


class ExpertNormBlock(Block):
    """A decoder layer that normalises the sum of its experts before it is added."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        super().__init__(spec, build, index)
        stream = spec.residual
        self.mlp_output_norm = norm_of(build, stream.hidden, stream.norm)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        residual = super().__call__(residual, context, rows)
        x, _ = self.mlp_output_norm(residual._replace(total=None))
        return residual._replace(x=x, partial=False)


class Axk1(Glm4MoeLite):
    """A.X K1."""

    dense, eps = 1, 1e-6
    names: ClassVar[Mapping[str, str]] = {
        **DeepseekV3.names,
        NORM: "blocks.{}.mlp_output_norm",
    }

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        # Files have norms that dense layers do not run.
        dense = [i for i, layer in enumerate(spec.layers) if not isinstance(layer.mlp, MoeSpec)]
        numbers = "|".join(map(str, dense))
        self.ignored = (*self.ignored, rf"model\.layers\.({numbers})\.post_mlp_layernorm\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        Fields(raw).ignore("topk_method")  # groups compete as in V3, whether there is a bias or not
        # Null is false for transformers, not its default.
        null = {name: False for name in FLAGS if raw.get(name, True) is None}
        return super().read_config(layered({"topk_method": None}, null, raw, DEFAULTS))

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Finds out whether the choice of experts has a correction bias: published files have
        none."""
        if any(name.endswith(CORRECTION) for name in shapes):
            return spec
        return spec.with_experts(router=RouterSpec(float32=True))

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Block:
        """Builds layer `index`."""
        sparse = isinstance(spec.layers[index].mlp, MoeSpec)
        return (ExpertNormBlock if sparse else Block)(spec, build, index)
