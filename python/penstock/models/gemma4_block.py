"""The layer of Gemma 4, and its names in checkpoints."""

from __future__ import annotations

from torch import Tensor

from penstock.config import Specification
from penstock.layers import Build, PerLayerInput, Residual, SandwichBlock
from penstock.layers.attention import StepContext
from penstock.weights import Target

LAYER, BLOCK = "model.layers.{}.", "blocks.{}."
BLOCK_NAMES = {
    "model.embed_tokens_per_layer": "per_layer.rows",
    "model.per_layer_model_projection": "per_layer.projection",
    "model.per_layer_projection_norm": "per_layer.norm",
    LAYER + "layer_scalar": BLOCK + "factor",
    LAYER + "per_layer_input_gate": BLOCK + "per_layer.gate",
    LAYER + "per_layer_projection": BLOCK + "per_layer.project",
    LAYER + "post_per_layer_input_norm": BLOCK + "per_layer.norm",
}
EXPERT_NAMES = {
    LAYER + "mlp.gate_proj": BLOCK + "mlp.shared.gate_up.gate",
    LAYER + "mlp.up_proj": BLOCK + "mlp.shared.gate_up.up",
    LAYER + "mlp.down_proj": BLOCK + "mlp.shared.down",
    LAYER + "post_feedforward_layernorm_1": BLOCK + "mlp.shared_output_norm",
    LAYER + "router": BLOCK + "mlp.router_norm",  # .scale
    LAYER + "router.proj": BLOCK + "mlp.router",
    LAYER + "router.per_expert_scale": BLOCK + "mlp.expert_scale",
    LAYER + "pre_feedforward_layernorm_2": BLOCK + "mlp.experts_norm",
    LAYER + "experts.gate_up_proj": BLOCK + "mlp.experts.gate_up.weight",
    LAYER + "experts.down_proj": BLOCK + "mlp.experts.down.weight",
    LAYER + "post_feedforward_layernorm_2": BLOCK + "mlp.experts_output_norm",
}


class Gemma4Block(SandwichBlock):
    """A decoder layer with norms on both sides; then what it adds of the embeddings per layer; then
    a factor of the whole stream."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        super().__init__(spec, build, index)
        self.index = index
        self.per_layer: PerLayerInput | None = None
        if spec.per_layer is not None:
            self.per_layer = PerLayerInput(build, spec.residual, spec.per_layer)
        self.factor = build.empty(1)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the factor, replicated on every rank."""
        return {"factor": Target.whole(self.factor)}

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        x, total, _ = super().__call__(residual, context, rows)
        assert total is not None
        total = total + x
        if self.per_layer is not None and context.layer_rows is not None:
            own = context.layer_rows[:, self.index]
            own = own if rows is None else own.index_select(0, rows)
            total = total + self.per_layer(total, own)
        return Residual(total * self.factor, None, False)
