"""The specification of attention with keys and values: norms, positions, and what it masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.faults import BadModel, Unsupported


class NormKind(Enum):
    """How rows are normalised, and how the learned weight w scales them."""

    RMS = "rms"
    """Root mean square, scaled by w."""
    RMS_PLUS_ONE = "rms_plus_one"
    """Root mean square, scaled by 1 + w."""
    LAYER = "layer"
    """Mean and variance, scaled by w."""
    LAYER_PLUS_ONE = "layer_plus_one"
    """Mean and variance, scaled by 1 + w."""


@dataclass(frozen=True)
class NormSpec:
    """Normalisation of rows."""

    eps: float
    kind: NormKind = NormKind.RMS
    bias: bool = False
    """Whether a learned bias is added; of LayerNorm only."""
    learned: bool = True
    """Whether there is a weight w; else it is 1."""

    def __post_init__(self) -> None:
        plain = self.kind in (NormKind.RMS, NormKind.LAYER)
        assert plain or self.learned, "1 + w without a w"
        assert self.centred or not self.bias, "a bias of RMSNorm"

    @property
    def centred(self) -> bool:
        """Whether the mean is subtracted (LayerNorm)."""
        return self.kind in (NormKind.LAYER, NormKind.LAYER_PLUS_ONE)


class QkNormWidth(Enum):
    """The rows that a norm of queries and keys takes."""

    HEAD = "head"
    """Each head by itself; heads share one weight [head_dim]."""
    FULL = "full"
    """All heads of a token together; weight [heads * head_dim]."""
    OWN = "own"
    """Each head by itself, with its own weight; weight [heads, head_dim]."""


@dataclass(frozen=True)
class QkNorm:
    """Normalisation of queries and keys: by LayerNorm if heads have their own weights, else by root
    mean square."""

    norm: NormSpec
    width: QkNormWidth = QkNormWidth.HEAD
    after_rope: bool = False
    """Whether RoPE precedes the norm, whose weight then scales what has been rotated."""

    def __post_init__(self) -> None:
        """Raises BadModel for a norm that has no implementation."""
        own = self.width is QkNormWidth.OWN
        plain = self.norm.learned or self.width is QkNormWidth.HEAD
        scaled = self.norm.kind is not NormKind.LAYER_PLUS_ONE
        if own != self.norm.centred or self.norm.bias or not (plain and scaled):
            raise Unsupported("config.json: this norm of queries and keys is not supported")


# Kinds of RoPE whose base grows: as transformers' `dynamic`, and by powers of two, as Qwen 1's.
NTK, NTK_POWERS = DYNAMIC = ("dynamic", "dynamic_powers")


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embeddings: `numbers` are the parameters of `kind`."""

    kind: str
    theta: float
    numbers: Mapping[str, Any] = field(default_factory=dict, hash=False)
    fraction: float = 1.0
    """Share of each head's leading dimensions that rotate."""
    interleaved: bool = False
    """Whether neighbours (2i, 2i + 1) rotate together, not the two halves' (i, i + n / 2)."""
    backwards: bool = False
    """Whether pairs rotate by the negative angle."""

    @property
    def extends(self) -> bool:
        """Whether the base grows with the longest sequence, which may pass the model's length."""
        return self.kind in DYNAMIC

    def dims(self, head_dim: int) -> int:
        """Dimensions of a head that rotate. Raises BadModel if they do not form pairs."""
        dims = int(head_dim * self.fraction)
        if dims % 2 or not 0 < dims <= head_dim:
            raise BadModel(
                f"config.json: partial_rotary_factor {self.fraction} makes {dims} of {head_dim} "
                "dimensions rotate; the number must be even, above 0 and at most head_dim"
            )
        return dims


@dataclass(frozen=True)
class IndexerSpec:
    """The choice of the tokens that a query attends to (DeepSeek sparse attention): those with the
    largest scores, from small queries and one key per token."""

    heads: int
    """Index queries of a token."""
    head_dim: int
    """Elements of an index query or key."""
    top_k: int
    """Tokens that a query attends to, if it sees more."""
    norm: NormSpec
    """Of the keys."""
    interleaved: bool
    """Whether neighbours rotate together, not halves. The angles are those of attention."""
    at_end: bool = False
    """Whether the last dimensions of index queries and keys rotate, not the first."""
    shared: bool = False
    """Whether the layer has no indexer and takes the choice of the last layer that has one."""
    pool: int = 0
    """Tokens that have one key together, and are chosen together (GLM-5-next); nothing rotates
    there. 0 = each token has its own."""

    @property
    def row(self) -> int:
        """Elements of a token's cached row: its key, and how much it counts in that of its pool."""
        return self.head_dim * (2 if self.pool else 1)


@dataclass(frozen=True)
class BlockIndexerSpec:
    """The choice of the blocks of tokens that a query attends to: those with the largest scores,
    from small queries. A block has one key, the mean of its tokens', and a query also sees the
    tokens behind the last whole block (Qwen4-Exp); or as `by_head` says."""

    heads: int
    """Index queries of a token."""
    head_dim: int
    """Elements of an index query or key."""
    block: int
    """Tokens of a block."""
    top_k: int
    """Blocks that a query attends to, if it sees more."""
    norm: NormSpec
    """Of index queries and keys."""
    recent: int = 0
    """Blocks that are chosen in any case: that of the query, and those before it. 0 with one key of
    a block."""

    @property
    def by_head(self) -> bool:
        """Whether each KV head has a choice and an index query of its own, and a block the score of
        its best token (MiniMax-M3)."""
        return self.recent > 0


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2): keys and values of all heads are projections of
    one latent per token, which is cached beside one rotated key."""

    rank: int
    """Elements of the latent."""
    rotated: int
    """Dimensions of queries and keys that rotate; all heads have the same key there."""
    still: int
    """Dimensions of each head's queries and keys that do not rotate."""
    value: int
    """Elements of each head's values."""
    norm: NormSpec
    """Of the latent, and of the queries' latent."""
    factor: float = 1.0
    """Of the normalised latent."""
    query_rank: int = 0
    """Elements of the queries' latent; 0 = queries are projections of the hidden state."""
    rotated_norm: bool = False
    """Whether the key that all heads share is normalised before it rotates, with a weight of its
    own (Dots3-Note)."""
    indexer: IndexerSpec | None = None
    """None = a query attends to all tokens before it."""


@dataclass(frozen=True)
class CompressionSpec:
    """Entries that each stand for a window of tokens (DeepSeek-V4): a weighted sum of its tokens,
    with a weight for each element. A query attends to the entries of the windows that have ended
    at its position."""

    rate: int
    """Tokens of a window."""
    overlaps: bool
    """Whether an entry also sums up the window before, by another projection of its tokens."""
    indexer: IndexerSpec | None
    """The choice of entries, by compressed keys of its own; None = a query attends to all."""
    cache: int = field(compare=False)
    """The cache of the entries, behind those of all layers (`Specification.caches`)."""

    @property
    def reach(self) -> int:
        """Tokens that an entry sums up."""
        return self.rate * (1 + self.overlaps)

    def inputs(self, size: int) -> int:
        """Numbers of each token from which entries of `size` elements are summed up."""
        return 2 * size * (1 + self.overlaps)


ENTRY_TOKENS = 16
"""A block of the cache of entries has one at least, so it must have as many tokens, or as many as a
window if that is shorter."""


@dataclass(frozen=True)
class SharedKeySpec:
    """Attention whose one key of a token is its value too (DeepSeek-V4): queries through a latent,
    an output through a matrix per group of heads. A query attends to the last tokens, and to
    compressed entries if there are any."""

    size: int
    """Elements of a head, of the key, and of an entry."""
    rotated: int
    """Dimensions that rotate: the last ones, neighbours together."""
    window: int
    """Tokens that a query attends to, itself included."""
    query_rank: int
    """Elements of the queries' latent."""
    groups: int
    """Of heads, whose outputs have a matrix of their own."""
    group_rank: int
    """Elements of a group's output."""
    norm: NormSpec
    """Of the queries' latent, of keys and of entries; of queries without a weight."""
    compression: CompressionSpec | None = None

    @property
    def row(self) -> int:
        """Elements of a token's row in the cache: its key, and what later entries need of it."""
        if self.compression is None:
            return self.size
        return self.size + sum(self.compression.inputs(size) for size in self.entry_sizes)

    @property
    def entry_sizes(self) -> tuple[int, ...]:
        """Elements of an entry, and of its index key if entries are chosen."""
        assert self.compression is not None
        indexer = self.compression.indexer
        return (self.size,) if indexer is None else (self.size, indexer.head_dim)

    @property
    def entry_row(self) -> int:
        """Elements of each token's row in the cache of entries, which has room for one where a
        window or a block ends."""
        assert self.compression is not None
        return -(-sum(self.entry_sizes) // min(self.compression.rate, ENTRY_TOKENS))


@dataclass(frozen=True)
class PositionScale:
    """Factor of the queries at position p: 1 + beta * ln(1 + floor((p + offset) / original))."""

    beta: float
    original: int
    offset: int = 0

    def grows(self, positions: int) -> bool:
        """Whether the factor is above 1 at any of `positions` positions."""
        return positions + self.offset > self.original


@dataclass(frozen=True)
class LogNScale:
    """Factor of the queries at position p: ln(p + 1) / ln(original), and 1 up to `original` tokens
    (Qwen 1's LogN attention)."""

    original: int

    def grows(self, positions: int) -> bool:
        """Whether the factor is above 1 at any of `positions` positions."""
        return positions > self.original


@dataclass(frozen=True)
class LogScale:
    """Factor of the scores of a query that sees n tokens: 1 + alpha * ln(n / floor), and 1 up to
    `floor` tokens."""

    alpha: float
    floor: int


@dataclass(frozen=True)
class BoundsSpec:
    """What attention with RelativeSpec has in addition (Inkling 2): vectors that are longer than a
    bound are scaled to it, in the place of norms of queries and keys; each head's values are
    normalised without a weight; and each query has a sink of its own for each head."""

    heads: float
    """Bound of a head's query, times learned factors, and of its key."""
    factors: float
    """Bound of a head's factors of profiles, times learned factors."""
    own_inputs: bool
    """Whether queries, keys and values each have an input of their own. The convolutions of keys
    and values then have weights that depend on the token."""


@dataclass(frozen=True)
class RelativeSpec:
    """Biases of scores by the query and the distance of the key (Inkling), in place of RoPE. Keys
    and values, before that, go through the short convolutions of `ConvolutionsSpec`."""

    rank: int
    """Numbers of each token and head, which are factors of as many profiles."""
    extent: int
    """Distances that a profile has a bias for; others have none."""
    width: int
    """Tokens that the convolutions of keys and of values read."""
    scale: LogScale | None = None
    """Of scores, biases included; None = 1."""
    bounds: BoundsSpec | None = None
    """None = queries and keys are normalised."""


class Gate(Enum):
    """What yields the gate of an attention's output. Its sigmoid multiplies the output, except that
    of `PER_HEAD_SOFTPLUS`."""

    WITH_QUERIES = "with_queries"
    """The query projection, behind each head's queries."""
    OWN = "own"
    """A projection of its own."""
    PER_HEAD_SOFTPLUS = "per_head_softplus"
    """A projection of its own to one number per head, whose softplus multiplies the head."""
    PER_HEAD = "per_head"
    """As PER_HEAD_SOFTPLUS, but the number's sigmoid multiplies the head."""


@dataclass(frozen=True)
class AttentionSpec:
    """Self-attention of one layer. Head counts are those of the whole model, not of one rank.

    With `latent`, the one KV head is the cached row, of `head_dim` elements: the latent, the
    rotated key and, with an indexer, its key. So it is with `shared_key`: `SharedKeySpec.row`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Factor of the scores before the softmax."""
    rope: RopeSpec | None
    """None = no position embedding in this layer."""
    window: int = 0
    """Window in tokens; 0 = unlimited."""
    aligned: bool = False
    """Whether windows begin at multiples of their size (chunked attention), not `window` - 1 tokens
    before each query."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QkNorm | None = None
    softcap: float = 0.0
    """Bound c of the scores: c * tanh(score / c), before the mask; 0 = none."""
    sinks: bool = False
    """Whether each head has a learned logit that joins the softmax's denominator."""
    latent: LatentSpec | None = None
    """None = each KV head caches a key and a value."""
    shared_key: SharedKeySpec | None = None
    """None = values are not keys."""
    position_scale: PositionScale | LogNScale | None = None
    slopes: tuple[float, ...] | None = None
    """What each head subtracts from a score per position between query and key (ALiBi); None =
    nothing."""
    clip: float = 0.0
    """Bound of queries, keys and values; 0 = none."""
    value_norm: bool = False
    """Whether each head's values are normalised too, as queries and keys, but without a weight."""
    keys_as_values: bool = False
    """Whether values are the keys before their norm and RoPE, without a projection of their own."""
    value_dim: int = 0
    """Elements of a head's values where they are fewer than `head_dim`; 0 = as many."""
    value_scale: float = 1.0
    """Factor of the values."""
    kv_layer: int | None = None
    """The earlier layer whose keys and values this layer reads; None = it has its own."""
    gate: Gate | None = None
    """What multiplies the output; None = nothing."""
    block_indexer: BlockIndexerSpec | None = None
    """None = a query attends to all tokens before it, or to what `latent` says."""
    relative: RelativeSpec | None = None
    """None = scores have no biases that depend on the query."""

    def __post_init__(self) -> None:
        """Raises BadModel for sizes that do not fit each other."""
        if self.heads % self.kv_heads:
            raise BadModel(
                f"config.json: num_attention_heads is {self.heads}, not a multiple of "
                f"num_key_value_heads, {self.kv_heads}"
            )
        if self.rope_dim % 2:
            name = "qk_rope_head_dim" if self.one_row else "head_dim"
            raise BadModel(f"config.json: {name} must be even, found {self.rope_dim}")
        if self.rope is not None:
            self._check_factors(self.rope)
            rope = self.rope
            if self.keys_as_values and (rope.interleaved or rope.fraction != 1 or rope.backwards):
                raise Unsupported(  # the dimensions of keys would be permuted, so values' too
                    "config.json: values that are the keys are not supported with a RoPE of "
                    "neighbours, of a part of each head, or of negative angles"
                )
        if self.value_dim > self.head_dim:
            raise Unsupported(
                f"config.json: v_head_dim {self.value_dim} above head_dim is not supported"
            )
        if (self.value_norm or self.keys_as_values) and self.qk_norm is None:
            raise Unsupported("config.json: a norm of values alone is not supported")

    @property
    def rope_dim(self) -> int:
        """Dimensions of a head for which `rope` is."""
        if self.shared_key is not None:
            return self.shared_key.rotated
        return self.head_dim if self.latent is None else self.latent.rotated

    @property
    def has_own_inputs(self) -> bool:
        """Whether queries, keys and values each have an input of their own."""
        bounds = None if self.relative is None else self.relative.bounds
        return bounds is not None and bounds.own_inputs

    @property
    def one_row(self) -> bool:
        """Whether a row of the cache is key and value of all heads."""
        return self.latent is not None or self.shared_key is not None

    @property
    def block_multiple(self) -> tuple[str, int]:
        """A field of config.json, and its number of tokens, which a block of the cache has a
        multiple of; 1 = any block will do."""
        indexer = None if self.latent is None else self.latent.indexer
        if indexer is not None and indexer.pool:
            return "index_kpool", indexer.pool
        if self.block_indexer is not None and not self.block_indexer.by_head:
            return "indexer_compress_ratio", self.block_indexer.block
        return "", 1

    def _check_factors(self, rope: RopeSpec) -> None:
        pairs = rope.dims(self.rope_dim) // 2
        for name in ("short_factor", "long_factor"):
            found = len(rope.numbers.get(name, range(pairs)))
            if found != pairs:
                raise BadModel(
                    f"config.json: {name} must have a number for each of {pairs} pairs of "
                    f"dimensions, found {found}"
                )
