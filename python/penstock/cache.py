"""The paged KV cache and the states of recurrent layers: their geometry and their memory. The
router owns the block tables."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.config import AttentionSpec, RecurrentSpec, SharedKeySpec, StateSizes
from penstock.config.attention_spec import ENTRY_TOKENS
from penstock.faults import BadSetting

PARAMS = torch.float16


@dataclass(frozen=True)
class KvFormat:
    """How a key or value of one token and head is stored."""

    dtype: torch.dtype
    """Of the stored elements."""
    bits: int
    """Of one element of the head. Elements of fewer bits than `dtype` has share one."""
    quantized: bool = False
    """Whether a scale and a zero, float16 each, are stored with each key and each value."""

    def elements(self, head_dim: int) -> int:
        """Returns the stored elements of a key or value."""
        return head_dim * self.bits // (8 * self.dtype.itemsize)

    def row_bytes(self, head_dim: int) -> int:
        """Returns the bytes of a key or value, scale and zero included."""
        params = 2 * PARAMS.itemsize if self.quantized else 0
        return self.elements(head_dim) * self.dtype.itemsize + params


KV_FORMATS = {
    "fp8_e4m3": KvFormat(torch.float8_e4m3fn, 8),
    "fp8_e5m2": KvFormat(torch.float8_e5m2, 8),
    "int8": KvFormat(torch.uint8, 8, quantized=True),
    "int4": KvFormat(torch.uint8, 4, quantized=True),
}


def kv_format(name: str, dtype: torch.dtype) -> KvFormat:
    """Returns the format that a setting names; "auto" is the model's `dtype`.

    Raises BadSetting for an unknown name.
    """
    if name == "auto":
        return KvFormat(dtype, 8 * dtype.itemsize)
    if name not in KV_FORMATS:
        known = ", ".join(("auto", *KV_FORMATS))
        raise BadSetting(f"kv_dtype {name!r} is unknown; choose one of {known}")
    return KV_FORMATS[name]


@dataclass(frozen=True)
class LayerCache:
    """One layer's keys and values."""

    data: Tensor
    """[blocks, planes, kv_heads, block_tokens, elements of a head]: keys, then values. With one
    plane, a row is key and value (latent attention), or has both (`BlockIndexedAttention`)."""
    params: Tensor | None = None
    """[blocks, 2, kv_heads, block_tokens, 2] float16: scale and zero, of a quantized format."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All memory of the layer; a block is a row of each."""
        return (self.data,) if self.params is None else (self.data, self.params)


@dataclass(frozen=True)
class StateCache:
    """One recurrent layer's states; a block is the state of one sequence."""

    inputs: Tensor | None
    """[blocks, 1, 1, channels, width - 1]: the last inputs of the convolution, the newest last;
    None = the layer has no convolution."""
    memory: Tensor | None
    """[blocks, 1, heads, key_dim, value_dim] float32 or float64: what the recurrence has stored;
    None = it has nothing but the convolution."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All memory of the layer; a block is a row of each."""
        return tuple(tensor for tensor in (self.inputs, self.memory) if tensor is not None)


AnyCache = LayerCache | StateCache


class KvShape(NamedTuple):
    """The KV shape of one layer. Layers of equal shape form a KV group."""

    window: int  # in tokens; 0 = unlimited
    kv_heads: int  # of this rank
    head_dim: int
    planes: int = 2  # keys and values; 1 = one row of a token is both

    @classmethod
    def of(cls, attention: AttentionSpec, ranks: int) -> KvShape:
        """Returns the shape of a layer on one of `ranks` ranks, which share the heads (see
        `Group.kv_share`). All of them keep the whole row of attention with one row per token,
        whose one head is that of all queries."""
        if attention.one_row:
            return cls(attention.window, 1, attention.head_dim, planes=1)
        if attention.block_indexer is not None:
            row = 2 * attention.head_dim + attention.block_indexer.head_dim
            return cls(attention.window, max(attention.kv_heads // ranks, 1), row, planes=1)
        return cls(attention.window, max(attention.kv_heads // ranks, 1), attention.head_dim)


def entry_shape(layer: SharedKeySpec, block_tokens: int) -> KvShape:
    """Returns the shape of a layer's compressed entries. Raises BadSetting for blocks that cannot
    hold them."""
    assert layer.compression is not None
    rate = layer.compression.rate
    least = min(rate, ENTRY_TOKENS)
    if block_tokens % least or max(block_tokens, rate) % min(block_tokens, rate):
        raise BadSetting(
            f"block_tokens is {block_tokens}; compressed entries of {rate} tokens need a multiple "
            f"of {least} that is a multiple or a divisor of {rate}"
        )
    return KvShape(0, 1, layer.entry_row, planes=1)


class StateShape(NamedTuple):
    """The shape of one recurrent layer's state. Layers of equal shape form a group of states."""

    sizes: StateSizes  # on this rank
    input_dtype: torch.dtype

    @property
    def inputs(self) -> tuple[int, ...]:
        """What a state has of the convolution."""
        return (1, 1, self.sizes.channels, self.sizes.width - 1)

    @property
    def memory(self) -> tuple[int, ...]:
        """What a state has of the recurrence."""
        return (1, self.sizes.heads, self.sizes.key_dim, self.sizes.value_dim)

    @property
    def memory_dtype(self) -> torch.dtype:
        """Of what the recurrence stores: a state adds up all tokens, so 16 bits would not do."""
        return torch.promote_types(self.input_dtype, torch.float32)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state."""
        inputs = math.prod(self.inputs) * self.input_dtype.itemsize
        return inputs + math.prod(self.memory) * self.memory_dtype.itemsize


def layer_shape(
    attention: AttentionSpec | RecurrentSpec, ranks: int, dtype: torch.dtype
) -> KvShape | StateShape:
    """Returns what a layer keeps of each token or sequence, on one of `ranks` ranks."""
    if isinstance(attention, AttentionSpec):
        return KvShape.of(attention, ranks)
    return StateShape(attention.state(ranks), dtype)


@dataclass(frozen=True)
class KvGroup:
    """Layers that share a pool of blocks, and one block table per sequence."""

    shape: KvShape | StateShape
    layers: tuple[int, ...]
    """If there are none, blocks have no memory; see `EMPTY`."""

    @property
    def recurrent(self) -> bool:
        """Whether a sequence has one block, its state."""
        return isinstance(self.shape, StateShape)

    @property
    def window(self) -> int:
        """The sliding window in tokens; 0 = unlimited."""
        return self.shape.window if isinstance(self.shape, KvShape) else 0


EMPTY = KvGroup(KvShape(window=0, kv_heads=0, head_dim=0), ())
"""The first group of a model that is all recurrent. The router finds prefixes by the blocks of a
group that has one for every few tokens, so there must be such a group; its blocks have 0 bytes."""


@dataclass(frozen=True)
class KvMemory:
    """One rank's KV memory."""

    caches: list[AnyCache]
    """For each layer; one that reads the cache of another layer has that one. Those of compressed
    entries follow."""
    group_of: tuple[int, ...]
    """For each layer, its KV group."""

    @property
    def groups(self) -> int:
        """Number of KV groups."""
        return max(self.group_of) + 1

    def tensors_of(self, group: int) -> list[Tensor]:
        """Returns all memory of a group's layers; a block of the group is a row of each."""
        pairs = zip(self.caches, self.group_of, strict=True)
        own = {id(cache): cache for cache, of in pairs if of == group}
        return [tensor for cache in own.values() for tensor in cache.tensors]


@dataclass(frozen=True)
class KvGeometry:
    """Shape of one rank's KV memory; the groups follow from the model and the number of ranks."""

    groups: tuple[KvGroup, ...]
    block_tokens: int
    format: KvFormat
    readers: Mapping[int, int] = field(default_factory=dict)
    """Layers without a cache of their own, and the layer whose cache each reads."""
    compressed: bool = False
    """Whether compressed entries stand for the tokens behind the windows."""

    @classmethod
    def of(
        cls,
        layers: Sequence[KvShape | StateShape],
        block_tokens: int,
        kv_format: KvFormat,
        readers: Mapping[int, int] | None = None,
        compressed: bool = False,
    ) -> KvGeometry:
        """Returns the geometry of a model with these layers; groups without a window come first,
        those of states last. Without keys and values, the first group is `EMPTY`."""
        readers = readers or {}
        own = [(i, shape) for i, shape in enumerate(layers) if i not in readers]
        found = dict.fromkeys(shape for _, shape in own)
        shapes: list[KvShape | StateShape] = [
            *sorted(shape for shape in found if isinstance(shape, KvShape)),
            *(shape for shape in found if isinstance(shape, StateShape)),
        ]
        groups = [
            KvGroup(shape, tuple(i for i, layer in own if layer == shape)) for shape in shapes
        ]
        if all(group.recurrent for group in groups):
            groups.insert(0, EMPTY)
        return cls(tuple(groups), block_tokens, kv_format, readers, compressed)

    def block_bytes(self, group: KvGroup) -> int:
        """Returns the bytes of one block in all layers of a group."""
        shape = group.shape
        if isinstance(shape, StateShape):
            return len(group.layers) * shape.state_bytes
        rows = shape.planes * shape.kv_heads * self.block_tokens
        return len(group.layers) * rows * self.format.row_bytes(shape.head_dim)

    @property
    def state_bytes(self) -> int:
        """The bytes of one sequence's states in recurrent layers."""
        return sum(self.block_bytes(group) for group in self.groups if group.recurrent)

    def blocks_for(self, tokens: int) -> int:
        """Returns the number of blocks for `tokens` consecutive tokens from position 0 on."""
        return -(-tokens // self.block_tokens)

    def allocate(self, blocks: Sequence[int], device: torch.device) -> KvMemory:
        """Allocates memory for the given number of blocks of each group.

        It is zeroed, because a padding row may read an unwritten block, and NaN would spread.
        """
        placed: dict[int, tuple[AnyCache, int]] = {}
        for number, (group, count) in enumerate(zip(self.groups, blocks, strict=True)):
            for layer in group.layers:
                placed[layer] = self._cache(group.shape, count, device), number
        placed |= {layer: placed[source] for layer, source in self.readers.items()}
        caches = [placed[layer] for layer in sorted(placed)]
        return KvMemory([cache for cache, _ in caches], tuple(group for _, group in caches))

    def _cache(self, shape: KvShape | StateShape, blocks: int, device: torch.device) -> AnyCache:
        if isinstance(shape, StateShape):
            inputs = memory = None
            if shape.sizes.channels:
                inputs = _zeros((blocks, *shape.inputs), shape.input_dtype, device)
            if shape.sizes.heads:
                memory = _zeros((blocks, *shape.memory), shape.memory_dtype, device)
            return StateCache(inputs, memory)
        rows = (blocks, shape.planes, shape.kv_heads, self.block_tokens)
        elements = self.format.elements(shape.head_dim)
        data = _zeros((*rows, elements), self.format.dtype, device)
        if not self.format.quantized:
            return LayerCache(data)
        return LayerCache(data, _zeros((*rows, 2), PARAMS, device))

    def allocate_scratch(self, device: torch.device) -> KvMemory:
        """Allocates one block per group, which all layers of the group share."""
        memory = self.allocate([1] * len(self.groups), device)
        firsts = {
            number: memory.caches[group.layers[0]]
            for number, group in enumerate(self.groups)
            if group.layers
        }
        return KvMemory([firsts[group] for group in memory.group_of], memory.group_of)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns zeroed memory. The host's comes from the system, which zeroes each page at its first
    use: to fill all of it would delay a start, and a restart, by 0.7 s per GiB."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)
