"""Building blocks that model families are wired from. Layers own sharding."""

from penstock.layers.attention import Attention
from penstock.layers.base import Build, Layer
from penstock.layers.block import Block
from penstock.layers.linear import ColumnLinear, Linear, RowLinear
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.layers.residual import Residual
from penstock.layers.rope import rope_table
from penstock.layers.vocab import Embedding, Head

__all__ = [
    "Attention",
    "Block",
    "Build",
    "ColumnLinear",
    "Embedding",
    "GatedMlp",
    "Head",
    "Layer",
    "Linear",
    "Residual",
    "RmsNorm",
    "RowLinear",
    "rope_table",
]
