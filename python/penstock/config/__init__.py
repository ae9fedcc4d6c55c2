"""The specification of a model, and functions that read it from config.json."""

from penstock.config.common import (
    read_activation,
    read_attention,
    read_decoder,
    read_gpt_names,
    read_layer_norm,
    read_mlp,
    read_residual,
)
from penstock.config.fields import Fields, ReadFields, layered, read_config
from penstock.config.layer_types import FULL, SLIDING, periodic, read_layer_types
from penstock.config.rope import read_rope
from penstock.config.specification import (
    Activation,
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    NormKind,
    NormSpec,
    Placement,
    PositionScale,
    QkNorm,
    QkNormWidth,
    ResidualSpec,
    RopeSpec,
    Specification,
)

__all__ = [
    "FULL",
    "SLIDING",
    "Activation",
    "AttentionSpec",
    "Fields",
    "LayerSpec",
    "MlpSpec",
    "NormKind",
    "NormSpec",
    "Placement",
    "PositionScale",
    "QkNorm",
    "QkNormWidth",
    "ReadFields",
    "ResidualSpec",
    "RopeSpec",
    "Specification",
    "layered",
    "periodic",
    "read_activation",
    "read_attention",
    "read_config",
    "read_decoder",
    "read_gpt_names",
    "read_layer_norm",
    "read_layer_types",
    "read_mlp",
    "read_residual",
    "read_rope",
]
