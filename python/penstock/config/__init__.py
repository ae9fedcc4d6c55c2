"""What a model is: its specification, and how it is read from config.json."""

from penstock.config.common import FULL, SLIDING, read_attention, read_decoder, read_layer_types
from penstock.config.fields import Fields, read_config
from penstock.config.rope import read_rope
from penstock.config.specification import (
    Activation,
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
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
    "NormSpec",
    "RopeSpec",
    "Specification",
    "read_attention",
    "read_config",
    "read_decoder",
    "read_layer_types",
    "read_rope",
]
