"""The specification of a decoder-only transformer, as data. A family reads it from config.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from penstock.config.attention_spec import AttentionSpec, NormSpec, SharedKeySpec
from penstock.config.feed_forward import Activation, MlpSpec, MoeSpec
from penstock.config.place import PlaceSpec
from penstock.config.recurrent_spec import CcaSpec, ConvolutionsSpec, NgramSpec, RecurrentSpec
from penstock.config.streams import (
    AltUpSpec,
    DepthSpec,
    GatedStreamsSpec,
    SinkhornSpec,
    StreamsSpec,
)


class Placement(Enum):
    """Where a block has its norms, and what its two layers read."""

    PRE = "pre"
    """One norm before each layer; the feed-forward layer reads the sum after attention."""
    SANDWICH = "sandwich"
    """As PRE, and one norm on each layer's output, before it is added."""
    POST = "post"
    """One norm on each layer's output, before it is added; layers read the sum itself."""
    PARALLEL = "parallel"
    """One norm, whose output both layers read; both outputs are added."""
    PARALLEL_NORMS = "parallel_norms"
    """As PARALLEL, but each layer has a norm of its own."""
    BESIDE = "beside"
    """As PRE; a block is two layers, whose attentions read the same norm, and are both added."""
    NORMED = "normed"
    """As PRE; each layer's output is added to what the layer reads, with `SumFactors`."""
    SHORTCUT = "shortcut"
    """As PRE; a block is two layers. What the experts of the first one yield is added behind the
    second."""


@dataclass(frozen=True)
class SumFactors:
    """Factors of the two summands behind a layer of `NORMED` placement."""

    read: float = 1.0
    """Of the norm's output, which the layer reads."""
    output: float = 1.0
    """Of the layer's own output."""


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer. Layers with equal specifications launch the same kernels."""

    attention: AttentionSpec | RecurrentSpec
    mlp: MlpSpec | MoeSpec | None
    """None = the layer has attention, or what stands for it, alone."""
    output_scale: float = 1.0
    """Factor of the attention's output, where attentions are side by side."""
    attention_sum: SumFactors = SumFactors()
    """Of attention and what it reads, where the norms' placement is `NORMED`."""
    mlp_sum: SumFactors = SumFactors()
    """As `attention_sum`, of the feed-forward layer."""
    place: PlaceSpec | None = None
    """Of a transformer that several places share; None = the layer has weights of its own."""

    @property
    def window(self) -> int:
        """The sliding window in tokens; 0 = unlimited."""
        return self.attention.window if isinstance(self.attention, AttentionSpec) else 0


@dataclass(frozen=True)
class ResidualSpec:
    """The residual stream: its width, and how layers read it and add to it."""

    hidden: int
    norm: NormSpec
    placement: Placement = Placement.PRE
    multiplier: float = 1.0
    """Factor of each layer's output before it is added."""
    output_norm: NormSpec | None = None
    """Of each layer's output, where norms are on both sides; None = as `norm`."""
    gate_rank: int = 0
    """Elements between the two matrices of a norm's gate (A.X K2); 0 = norms have no gates."""
    streams: StreamsSpec | SinkhornSpec | GatedStreamsSpec | AltUpSpec | DepthSpec | None = None
    """Where there are several streams. None = there is one."""


@dataclass(frozen=True)
class PerLayerSpec:
    """Embeddings per layer (Gemma 3n): each layer adds a projection of a row of its own, of the
    token and of the model's embedding of it."""

    size: int
    """Elements of a layer's row."""
    vocab: int
    activation: Activation
    """Of the gate that the hidden state is for the row."""


@dataclass(frozen=True)
class Specification:
    """A decoder-only transformer. Sizes are those of the whole model, not of one rank."""

    residual: ResidualSpec
    vocab: int
    max_positions: int
    """Tokens of a sequence; a default where no layer has attention."""
    layers: tuple[LayerSpec, ...]
    tied: bool
    """Whether the head shares the embedding's matrix."""
    length_limit: str = "max_position_embeddings"
    """What limits `max_positions`, for errors."""
    head_bias: bool = False
    """Whether the logits have a learned bias."""
    embedding_scale: float = 1.0
    """Factor of the embedding's rows."""
    embedding_eps: float = 0.0
    """Of a norm of the embedding's rows by root mean square; 0 = none."""
    embedding_weight: bool = False
    """Whether that norm has a weight."""
    final_norm: NormSpec | None = None
    """Of the last hidden states. None = the residual's."""
    learned_positions: bool = False
    """Whether a learned row per position is added to the embedding."""
    position_offset: int = 0
    """Rows of that table before the first position's."""
    logits_scale: float = 1.0
    """Factor of the logits, before `logits_softcap`."""
    logits_softcap: float = 0.0
    """Bound c of the logits: c * tanh(logit / c); 0 = none."""
    per_layer: PerLayerSpec | None = None
    """None = there are no embeddings per layer."""
    layer_numbers: tuple[int, ...] = ()
    """Of a checkpoint that has further layers, which are left out: the number of each layer."""

    @property
    def blocks(self) -> int:
        """Blocks of the decoder."""
        pairs = self.residual.placement in (Placement.BESIDE, Placement.SHORTCUT)
        return len(self.block_layers) // (2 if pairs else 1)

    @property
    def block_layers(self) -> list[int]:
        """The layers that blocks are of: n-grams, convolutions and places of shared transformers
        are a part of the next one's."""
        parts, every = (CcaSpec, ConvolutionsSpec, NgramSpec), enumerate(self.layers)
        return [i for i, one in every if not (isinstance(one.attention, parts) or one.place)]

    @property
    def windows(self) -> tuple[int, ...]:
        """Each layer's sliding window in tokens; 0 = unlimited."""
        return tuple(layer.window for layer in self.layers)

    @property
    def softmax_layers(self) -> list[AttentionSpec]:
        """The attention of the layers that cache keys and values."""
        found = (layer.attention for layer in self.layers)
        return [each for each in found if isinstance(each, AttentionSpec)]

    @property
    def extends(self) -> bool:
        """Whether sequences may be longer than `max_positions`, because RoPE's base grows."""
        ropes = [attention.rope for attention in self.softmax_layers]
        return any(rope is not None and rope.extends for rope in ropes)

    @property
    def heads(self) -> int:
        """Query heads of the first layer that caches keys and values."""
        return self.softmax_layers[0].heads

    @property
    def kv_heads(self) -> int:
        """Key and value heads of every layer that caches them."""
        return self.softmax_layers[0].kv_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head in every layer that caches keys and values."""
        return self.softmax_layers[0].head_dim

    @property
    def has_states(self) -> bool:
        """Whether any layer is recurrent."""
        return len(self.softmax_layers) < len(self.layers)

    @property
    def limitations(self) -> tuple[str, ...]:
        """What the model lacks because another library computes it: nothing."""
        return ()

    @property
    def kv_readers(self) -> dict[int, int]:
        """The layers that read the keys and values of an earlier layer, and that layer."""
        return {
            index: attention.kv_layer
            for index, attention in enumerate(layer.attention for layer in self.layers)
            if isinstance(attention, AttentionSpec) and attention.kv_layer is not None
        }

    @property
    def has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return any(isinstance(layer.mlp, MoeSpec) for layer in self.layers)

    @property
    def has_latents(self) -> bool:
        """Whether any layer caches rows of its own kind in place of keys and values: one for all
        heads, as latent attention does, or rows with a key of an indexer."""
        return any(each.one_row or each.block_indexer for each in self.softmax_layers)

    @property
    def compressed_layers(self) -> list[SharedKeySpec]:
        """The layers with compressed entries, whose caches are behind those of all layers."""
        found = (attention.shared_key for attention in self.softmax_layers)
        return [each for each in found if each is not None and each.compression is not None]

    @property
    def shares_indexers(self) -> bool:
        """Whether any layer takes the choice of tokens of an earlier one."""
        latents = (attention.latent for attention in self.softmax_layers)
        indexers = (latent.indexer for latent in latents if latent is not None)
        return any(indexer is not None and indexer.shared for indexer in indexers)

    def shared_sizes(self, expert_parallel: bool = False) -> list[tuple[str, int]]:
        """Returns sizes that the ranks must be able to share equally, by config.json's names or in
        words. `expert_parallel`: ranks share the experts, not their intermediate size."""
        found: dict[tuple[str, int], None] = {}
        for attention in (layer.attention for layer in self.layers):
            if isinstance(attention, AttentionSpec):
                found["num_attention_heads", attention.heads] = None
                if attention.shared_key is not None:
                    found["o_groups", attention.shared_key.groups] = None
            elif attention.shared is not None:
                found[attention.shared] = None
        for mlp in (layer.mlp for layer in self.layers):
            if mlp is None:
                continue
            if isinstance(mlp, MlpSpec):
                found["intermediate_size", mlp.intermediate] = None
                continue
            if expert_parallel:
                found["the number of experts", mlp.experts] = None
            else:
                found["the experts' intermediate size", mlp.expert.intermediate] = None
            if mlp.shared is not None:
                found["the shared experts' intermediate size", mlp.shared.intermediate] = None
        return list(found)

    def with_experts(self, **changes: Any) -> Specification:
        """Returns a copy with these fields of all mixtures of experts."""
        layers = tuple(
            replace(layer, mlp=replace(layer.mlp, **changes))
            if isinstance(layer.mlp, MoeSpec)
            else layer
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def within(self, tokens: int) -> Specification:
        """Returns a copy for sequences of at most `tokens` tokens: a window that none of them
        outgrows is none."""
        return self.with_attention([window * (window < tokens) for window in self.windows])

    def with_attention(self, windows: Iterable[int], **changes: Any) -> Specification:
        """Returns a copy with these windows, one per layer, and these fields of all attention."""
        return self.with_each_attention({"window": window, **changes} for window in windows)

    def with_each_attention(self, changes: Iterable[Mapping[str, Any]]) -> Specification:
        """Returns a copy with changed fields of attention, given for each layer. Recurrent layers
        stay as they are."""
        layers = tuple(
            replace(layer, attention=replace(layer.attention, **one))
            if isinstance(layer.attention, AttentionSpec)
            else layer
            for layer, one in zip(self.layers, changes, strict=True)
        )
        return replace(self, layers=layers)
