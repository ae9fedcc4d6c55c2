"""Layers from which model families are built. A layer implements its sharding."""

from penstock.layers.altup import AltUp, Laurel
from penstock.layers.attention import Attention, GatedAttention, NormedAttention, SelfAttention
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.block import (
    Block,
    ParallelBlock,
    ParallelNormsBlock,
    PostBlock,
    SandwichBlock,
    attention_of,
    block_of,
    mlp_of,
)
from penstock.layers.cca import CcaAttention
from penstock.layers.cca_block import CcaBlock
from penstock.layers.convolved_block import ConvolvedBlock
from penstock.layers.delta_net import DeltaNet
from penstock.layers.depth_block import DepthBlock
from penstock.layers.experts import ExpertMlps, MoeMlp, Router, SharedGate
from penstock.layers.gated_norm import GatedNorm
from penstock.layers.kimi_delta import KimiDelta
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.lightning import LightningAttention
from penstock.layers.linear import ColumnLinear, Cut, FreeLinear, Linear, RowLinear
from penstock.layers.mamba import Mamba2
from penstock.layers.mamba1 import Mamba1
from penstock.layers.mlp import GatedMlp, Mlp
from penstock.layers.ngram import NgramLayer
from penstock.layers.norm import (
    FullWidthNorm,
    HeadNorm,
    LayerNorm,
    Norm,
    OwnHeadNorm,
    RmsNorm,
    norm_of,
)
from penstock.layers.own_norm_experts import OwnNormMoeMlp
from penstock.layers.per_layer import PerLayerEmbeddings, PerLayerInput
from penstock.layers.recurrent import Convolution, Recurrent
from penstock.layers.rg_lru import RgLru
from penstock.layers.rope import rope_order, rope_table
from penstock.layers.scaled_stream import ScaledStream
from penstock.layers.shared_transformer import Place, SharedTransformer
from penstock.layers.short_conv import ShortConv
from penstock.layers.sinkhorn_streams import MixingConnection
from penstock.layers.stream_block import HashStreamBlock, StreamBlock, StreamEnds, streams_of
from penstock.layers.streams import HyperConnection, MeanStreams, Streams
from penstock.layers.vocab import Embedding, Head, PositionEmbedding
from penstock.layers.weighed_experts import WeighedMoeMlp

__all__ = [
    "AltUp",
    "Attention",
    "Block",
    "Build",
    "CcaAttention",
    "CcaBlock",
    "ColumnLinear",
    "Convolution",
    "ConvolvedBlock",
    "Cut",
    "DeltaNet",
    "DepthBlock",
    "Embedding",
    "ExpertMlps",
    "FreeLinear",
    "FullWidthNorm",
    "GatedAttention",
    "GatedMlp",
    "GatedNorm",
    "HashStreamBlock",
    "Head",
    "HeadNorm",
    "HyperConnection",
    "KimiDelta",
    "LatentAttention",
    "Laurel",
    "Layer",
    "LayerNorm",
    "LightningAttention",
    "Linear",
    "Mamba1",
    "Mamba2",
    "MeanStreams",
    "MixingConnection",
    "Mlp",
    "MoeMlp",
    "NgramLayer",
    "Norm",
    "NormedAttention",
    "OwnHeadNorm",
    "OwnNormMoeMlp",
    "ParallelBlock",
    "ParallelNormsBlock",
    "PerLayerEmbeddings",
    "PerLayerInput",
    "Place",
    "PositionEmbedding",
    "PostBlock",
    "Recurrent",
    "Residual",
    "RgLru",
    "RmsNorm",
    "Router",
    "RowLinear",
    "SandwichBlock",
    "ScaledStream",
    "SelfAttention",
    "SharedGate",
    "SharedTransformer",
    "ShortConv",
    "StreamBlock",
    "StreamEnds",
    "Streams",
    "WeighedMoeMlp",
    "attention_of",
    "block_of",
    "mlp_of",
    "norm_of",
    "rope_order",
    "rope_table",
    "streams_of",
]
