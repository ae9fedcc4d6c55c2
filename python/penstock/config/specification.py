"""The specification of a decoder-only transformer, as data. A family reads it from config.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from penstock.config.attention_spec import AttentionSpec, NormSpec, SharedKeySpec
from penstock.config.feed_forward import Activation, MlpSpec, MoeSpec
from penstock.config.place import PlaceSpec
from penstock.config.streams import AltUpSpec, GatedStreamsSpec, SinkhornSpec, StreamsSpec
from penstock.faults import BadModel


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


class ProjectionOrder(Enum):
    """How a checkpoint stores the input projections of linear attention."""

    BY_KIND = "by_kind"
    """All queries, all keys, all values; gates, strengths and decays are matrices of their own."""
    BY_KEY_HEAD = "by_key_head"
    """Of each key head its query, key, values and gates together; and its strengths and decays."""


class StateSizes(NamedTuple):
    """What a recurrent layer keeps of each sequence, on one rank."""

    channels: int
    """Of the convolution; 0 = there is none."""
    width: int
    """Tokens that the convolution reads."""
    heads: int = 0
    """Heads with a state; 0 = the convolution's inputs are all there is."""
    key_dim: int = 0
    value_dim: int = 0


def _require_width(must: str, width: int) -> None:
    """Raises BadModel for a convolution that has no inputs to keep; `must` begins the rule."""
    if width < 2:
        raise BadModel(f"config.json: {must} at least 2, found {width}")


@dataclass(frozen=True)
class DeltaNetSpec:
    """Linear attention of one layer: a short convolution of queries, keys and values, and a state
    per value head that the gated delta rule updates (Gated DeltaNet, arXiv:2412.06464). Head counts
    are those of the whole model, not of one rank."""

    key_heads: int
    """Heads of queries and of keys; each serves as many consecutive value heads."""
    value_heads: int
    key_dim: int
    """Elements of a query or key."""
    value_dim: int
    """Elements of a value."""
    width: int
    """Tokens that the convolution reads."""
    norm: NormSpec
    """Of each head's output, before its gate."""
    order: ProjectionOrder = ProjectionOrder.BY_KIND
    most: float = 1.0
    """What strengths are below."""
    sigmoid_gate: bool = False
    """Whether the gate's sigmoid multiplies the output, not its SiLU."""

    def __post_init__(self) -> None:
        """Raises BadModel for sizes that do not fit each other."""
        if self.value_heads % self.key_heads:
            raise BadModel(
                f"config.json: linear_num_value_heads is {self.value_heads}, not a multiple of "
                f"linear_num_key_heads, {self.key_heads}"
            )
        _require_width("linear_conv_kernel_dim must be", self.width)

    @property
    def shared(self) -> tuple[str, int]:
        """What ranks must be able to share equally, by config.json's name."""
        return "linear_num_key_heads", self.key_heads

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks. The convolution reads queries, keys and
        values."""
        channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        heads = self.value_heads // ranks
        return StateSizes(channels // ranks, self.width, heads, self.key_dim, self.value_dim)


@dataclass(frozen=True)
class KimiDeltaSpec:
    """Linear attention of one layer: as DeltaNetSpec, where each channel of a key has a decay of
    its own (Kimi Delta Attention, arXiv:2510.26692). The head count is that of the whole model, not
    of one rank."""

    heads: int
    """Of queries, of keys and of values."""
    head_dim: int
    """Elements of each."""
    width: int
    """Tokens that the convolution reads."""
    norm: NormSpec
    """Of each head's output, before its gate."""
    narrow: bool = True
    """Whether decays and gates are products with two matrices, with `head_dim` numbers between
    them; else with one."""
    bound: float = 0.0
    """The least logarithm of what a token leaves of a state; 0 = none."""

    def __post_init__(self) -> None:
        """Raises BadModel for a width without inputs to keep."""
        _require_width("the convolution of linear attention must have a width of", self.width)

    @property
    def shared(self) -> tuple[str, int]:
        """What ranks must be able to share equally, in words."""
        return "the number of heads of linear attention", self.heads

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks. The convolution reads queries, keys and
        values."""
        heads = self.heads // ranks
        channels = 3 * heads * self.head_dim
        return StateSizes(channels, self.width, heads, self.head_dim, self.head_dim)


@dataclass(frozen=True)
class ShortConvSpec:
    """A gated convolution of one layer (LFM2): projections of a token to B, C and x, the causal
    convolution of B x, times C, and an output projection."""

    channels: int
    """Elements of B, of C and of x."""
    width: int
    """Tokens that the convolution reads."""
    bias: bool = False
    """Whether projections and convolution have a bias."""

    def __post_init__(self) -> None:
        """Raises BadModel for a width without inputs to keep."""
        _require_width("conv_L_cache must be", self.width)

    @property
    def shared(self) -> tuple[str, int]:
        """What ranks must be able to share equally, by config.json's name."""
        return "hidden_size", self.channels

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks."""
        return StateSizes(self.channels // ranks, self.width)


@dataclass(frozen=True)
class Mamba2Spec:
    """Mamba-2 of one layer (arXiv:2405.21060): a short convolution of x, B and C, a state per head,
    and a gated norm. Head counts are those of the whole model, not of one rank."""

    heads: int
    head_dim: int
    """Elements of x in a head."""
    groups: int
    """Groups of heads that share B and C."""
    state_dim: int
    """Elements of B and of C in a group."""
    width: int
    """Tokens that the convolution reads."""
    norm: NormSpec | None
    """Of each group's output; None = it is multiplied by its gate alone."""
    gate_first: bool = True
    """Whether the output is multiplied by its gate before the norm."""
    conv_bias: bool = True
    bias: bool = False
    """Whether projections have a bias."""
    step_limits: tuple[float, float] = (0.0, math.inf)
    factors: tuple[float, ...] = ()
    """Of gate, x, B, C and steps, as the input projection yields them; none = 1."""

    def __post_init__(self) -> None:
        """Raises BadModel for sizes that do not fit each other."""
        if self.heads % self.groups:
            raise BadModel(
                f"config.json: Mamba has {self.heads} heads, not a multiple of {self.groups} groups"
            )
        _require_width("Mamba's convolution must have a width of", self.width)

    @property
    def shared(self) -> tuple[str, int]:
        """What ranks must be able to share equally, in words."""
        return "the number of Mamba heads", self.heads

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks. With more ranks than groups, several have the
        same group."""
        heads, groups = self.heads // ranks, max(self.groups // ranks, 1)
        channels = heads * self.head_dim + 2 * groups * self.state_dim
        return StateSizes(channels, self.width, heads, self.state_dim, self.head_dim)


@dataclass(frozen=True)
class Mamba1Spec:
    """Mamba-1 of one layer (arXiv:2312.00752): a short convolution of x, and a state per channel
    and element, each with a decay of its own."""

    channels: int
    """Elements of x; those of the whole model, not of one rank."""
    state_dim: int
    """Elements of B, of C, and of a channel's state."""
    step_rank: int
    """Elements from which the steps of all channels are computed."""
    width: int
    """Tokens that the convolution reads."""
    norm: NormSpec | None
    """Of what yields the steps, of B, and of C; None = they are not normalised."""
    conv_bias: bool = True
    bias: bool = False
    """Whether the projections to x and of the output have a bias."""

    def __post_init__(self) -> None:
        """Raises BadModel for a width without inputs to keep."""
        _require_width("Mamba's convolution must have a width of", self.width)

    @property
    def shared(self) -> tuple[str, int]:
        """What ranks must be able to share equally, in words."""
        return "the number of Mamba channels", self.channels

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks. Rows of a state are elements, columns
        channels."""
        channels = self.channels // ranks
        return StateSizes(channels, self.width, 1, self.state_dim, channels)


@dataclass(frozen=True)
class LightningSpec:
    """Lightning attention of one layer (arXiv:2401.04658): linear attention over a state per head
    that decays by a constant. Head counts are those of the whole model, not of one rank."""

    heads: int
    head_dim: int
    """Elements of a query, of a key and of a value."""
    norm: NormSpec
    """Of all heads' output together, before its gate."""
    decays: tuple[float, ...] = field(compare=False)
    """What each head subtracts from the logarithm of its state per token. They are numbers of the
    layer, not of its kind: layers that differ here alone launch the same kernels."""

    @property
    def shared(self) -> tuple[str, int]:
        """What ranks must be able to share equally, by config.json's name."""
        return "num_attention_heads", self.heads

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks."""
        return StateSizes(0, 1, self.heads // ranks, self.head_dim, self.head_dim)


@dataclass(frozen=True)
class NgramSpec:
    """What a layer adds to all residual streams of hashed n-grams (Qwen4-Exp): rows of a table, one
    for each hash of each order of n-gram that ends with the token, and a short convolution."""

    size: int
    """Elements of all rows of a token together."""
    order: int
    """Tokens of the longest n-gram; the shortest has two. Also the convolution's dilation."""
    hashes: int
    """Hashes of each order."""
    width: int
    """Tokens that the convolution reads, `order` apart."""
    channels: int
    """Elements of all residual streams of a token together."""
    base: int
    """No hash has fewer rows. Each has a prime number of them."""
    divisor: int
    """The table is padded to a multiple of these rows."""
    parts: int
    """Tensors of a checkpoint that the table is stored in."""
    seed: int
    """Of the hashes' factors."""
    end: int
    """The token that no n-gram reaches beyond."""
    norm: NormSpec
    ordinal: int = field(compare=False)
    """Which of the layers with n-grams this is; hashes of each one differ."""

    def __post_init__(self) -> None:
        """Raises BadModel for sizes that do not fit each other."""
        if self.order < 2:
            raise BadModel(f"config.json: ngram_size must be at least 2, found {self.order}")
        if self.size % self.tables:
            raise BadModel(
                f"config.json: ple_embed_dim is {self.size}, not a multiple of {self.tables}, the "
                "number of hashes of all n-grams"
            )
        _require_width("ple_conv_kernel_size must be", self.width)

    @property
    def tables(self) -> int:
        """Hashes of all orders together."""
        return (self.order - 1) * self.hashes

    @property
    def shared(self) -> tuple[str, int] | None:
        """None: ranks share the table's rows, however many there are."""
        return None

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on each of `ranks` ranks: every one has all streams. What a recurrence
        has elsewhere are here the ids of the tokens before."""
        width = (self.width - 1) * self.order + 1
        return StateSizes(self.channels, width, 1, self.order - 1, self.order - 1)


@dataclass(frozen=True)
class ConvolutionsSpec:
    """The short convolutions in the next layer's block, each added to what it reads (Inkling): of
    keys, of values, of the outputs of attention and feed-forward layer."""

    kv_heads: int
    head_dim: int
    hidden: int
    width: int
    """Tokens that each convolution reads."""

    def __post_init__(self) -> None:
        """Raises BadModel for a width without inputs to keep."""
        _require_width("conv_kernel_size must be", self.width)

    @property
    def shared(self) -> tuple[str, int] | None:
        """None: ranks share the KV heads as in the next layer."""
        return None

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks: each one keeps its part of both outputs."""
        kv = 2 * max(self.kv_heads // ranks, 1) * self.head_dim
        return StateSizes(kv + 2 * self.hidden, self.width)


RecurrentSpec = (
    ConvolutionsSpec
    | DeltaNetSpec
    | KimiDeltaSpec
    | LightningSpec
    | Mamba1Spec
    | Mamba2Spec
    | NgramSpec
    | ShortConvSpec
)


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
    streams: StreamsSpec | SinkhornSpec | GatedStreamsSpec | AltUpSpec | None = None
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
        """The layers that blocks are of: n-grams, convolutions and places of shared transformers are
        a part of the next one's."""
        parts, every = (ConvolutionsSpec, NgramSpec), enumerate(self.layers)
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
