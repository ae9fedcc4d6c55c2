"""Layers from which model families are built. A layer implements its sharding."""

from penstock.layers.attention import Attention, NormedAttention, attention_of
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.block import Block, ParallelBlock, SandwichBlock, block_of, mlp_of
from penstock.layers.experts import MoeMlp
from penstock.layers.linear import ColumnLinear, Linear, RowLinear
from penstock.layers.mlp import GatedMlp, Mlp
from penstock.layers.norm import FullWidthNorm, HeadNorm, LayerNorm, Norm, RmsNorm, norm_of
from penstock.layers.rope import rope_order, rope_table
from penstock.layers.vocab import Embedding, Head, PositionEmbedding

__all__ = [
    "Attention",
    "Block",
    "Build",
    "ColumnLinear",
    "Embedding",
    "FullWidthNorm",
    "GatedMlp",
    "Head",
    "HeadNorm",
    "Layer",
    "LayerNorm",
    "Linear",
    "Mlp",
    "MoeMlp",
    "Norm",
    "NormedAttention",
    "ParallelBlock",
    "PositionEmbedding",
    "Residual",
    "RmsNorm",
    "RowLinear",
    "SandwichBlock",
    "attention_of",
    "block_of",
    "mlp_of",
    "norm_of",
    "rope_order",
    "rope_table",
]
