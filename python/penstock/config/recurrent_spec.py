"""The specifications of layers that keep states of sequences, and of what else stands in the place
of attention, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.config.attention_spec import NormSpec
from penstock.faults import BadModel


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
    heads: int | None = None
    """Heads that share the channels, each with B, C and what yields its steps from its own channels
    (Zamba, arXiv:2405.16712). Checkpoints then store x and gate in turns, and all else by head;
    None = one head, which they do not name."""

    def __post_init__(self) -> None:
        """Raises BadModel for sizes that do not fit each other."""
        if self.heads and self.channels % self.heads:
            raise BadModel(
                f"config.json: Mamba has {self.channels} channels, not a multiple of {self.heads} "
                "heads"
            )
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
class RgLruSpec:
    """A gated linear recurrence of one layer (RG-LRU, arXiv:2402.19427): a short convolution, and a
    number per channel that decays by a gate. Sizes are those of the whole model, not of one
    rank."""

    channels: int
    heads: int
    """Blocks of channels; gates of a block are products of its channels alone."""
    width: int
    """Tokens that the convolution reads."""

    def __post_init__(self) -> None:
        """Raises BadModel for sizes that do not fit each other."""
        if self.channels % self.heads:
            raise BadModel(
                f"config.json: lru_width is {self.channels}, not a multiple of "
                f"num_attention_heads, {self.heads}"
            )
        _require_width("conv1d_width must be", self.width)

    @property
    def shared(self) -> tuple[str, int]:
        """What ranks must be able to share equally, by config.json's name."""
        return "num_attention_heads", self.heads

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks. A state is a row of channels."""
        channels = self.channels // ranks
        return StateSizes(channels, self.width, 1, 1, channels)


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


@dataclass(frozen=True)
class CcaSpec:
    """What compressed convolutional attention (CCA, arXiv:2510.04476) in the next layer's block
    keeps of the last tokens: queries, keys and values before its convolutions, and queries and keys
    between them. Head counts are those of the whole model, not of one rank."""

    heads: int
    kv_heads: int
    head_dim: int
    width: int
    """Tokens that the first convolution reads, of each channel by itself."""
    head_width: int
    """Tokens that the second one reads, of all channels of a head."""

    @property
    def shared(self) -> tuple[str, int] | None:
        """None: ranks share the heads as in the next layer."""
        return None

    @property
    def kept_width(self) -> int:
        """Tokens that the state covers, with the newest one: as many as anything reads."""
        return max(self.width, self.head_width, 2)

    def channels(self, ranks: int) -> tuple[int, int]:
        """Returns the elements of queries and keys, and of values, on one of `ranks` ranks. Each
        has all queries of its KV heads."""
        kv_heads = max(self.kv_heads // ranks, 1)
        groups = self.heads // self.kv_heads + 1
        return kv_heads * groups * self.head_dim, kv_heads * self.head_dim

    def state(self, ranks: int) -> StateSizes:
        """Returns the sizes on one of `ranks` ranks."""
        queries_and_keys, values = self.channels(ranks)
        return StateSizes(queries_and_keys * self.head_width + values, self.kept_width)


RecurrentSpec = (
    CcaSpec
    | ConvolutionsSpec
    | DeltaNetSpec
    | KimiDeltaSpec
    | LightningSpec
    | Mamba1Spec
    | Mamba2Spec
    | NgramSpec
    | RgLruSpec
    | ShortConvSpec
)
