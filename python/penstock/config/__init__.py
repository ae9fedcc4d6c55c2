"""The specification of a model, and functions that read it from config.json."""

from penstock.config.common import read_activation, read_attention, read_decoder, read_residual
from penstock.config.experts import (
    read_expert_count,
    read_gated,
    read_routing,
    read_sigmoid_routing,
    read_sparse_layers,
)
from penstock.config.fields import Fields, read_config
from penstock.config.layer_types import FULL, SLIDING, read_layer_types
from penstock.config.rope import read_rope
from penstock.config.specification import (
    Activation,
    AttentionSpec,
    ExpertStorage,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormKind,
    NormSpec,
    Placement,
    QkNorm,
    QkNormWidth,
    ResidualSpec,
    RopeSpec,
    RouterSpec,
    Specification,
)

__all__ = [
    "FULL",
    "SLIDING",
    "Activation",
    "AttentionSpec",
    "ExpertStorage",
    "Fields",
    "LayerSpec",
    "MlpSpec",
    "MoeSpec",
    "NormKind",
    "NormSpec",
    "Placement",
    "QkNorm",
    "QkNormWidth",
    "ResidualSpec",
    "RopeSpec",
    "RouterSpec",
    "Specification",
    "read_activation",
    "read_attention",
    "read_config",
    "read_decoder",
    "read_expert_count",
    "read_gated",
    "read_layer_types",
    "read_residual",
    "read_rope",
    "read_routing",
    "read_sigmoid_routing",
    "read_sparse_layers",
]
