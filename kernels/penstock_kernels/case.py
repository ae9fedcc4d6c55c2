"""A case: one set of arguments of one op, for its tests and its benches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from .kv_quantization import quantized, saturated
from .op import Op
from .recurrence import Runs
from .shared import wide

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

# How a cache stores what it holds: as the model's dtype, in fp8, in integers of 8 or 4 bits.
PLAIN_KV = ""
FP8_KV = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
QUANTIZED_KV = (*FP8_KV, "int8", "int4")

# Error allowed in a row, relative to the row, where an op rounds its result and its operands once.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}


class Size(Enum):
    """Where a case runs."""

    SMALL = "small"  # in Triton's interpreter too
    FULL = "full"  # on a device
    BENCH = "bench"  # on a device, and timed by the bench


@dataclass(frozen=True)
class Case:
    """One set of arguments of one op."""

    name: str
    """Unique within the op; tests and benches print it."""
    size: Size
    """Where it runs."""
    make: Callable[[torch.device], dict[str, Any]]
    """Fresh random arguments on a device, by name. Torch's global generator draws them."""
    tolerance: float
    """Largest ||out - reference|| / ||reference|| of a row, the reference in float64."""
    bytes_moved: int = 0
    """Fewest bytes the op must move, for the bench's TB/s; 0 if arithmetic bounds it."""
    operations: int = 0
    """Floating-point operations it must do, for the bench's TFLOP/s; 0 if bytes bound it."""


def cases(op: Op[..., Any]) -> list[Case]:
    """The cases of an op, from its `cases` module."""
    module = importlib.import_module(f"{__package__}.{op.name}.cases")
    found: list[Case] = module.CASES
    return found


@dataclass(frozen=True)
class Heads:
    """Shape of an attention layer in a case."""

    query: int
    """Query heads."""
    kv: int
    """Key and value heads."""
    size: int
    """Elements of a head."""
    block_tokens: int
    """Tokens of a cache block."""


@dataclass(frozen=True)
class Latent:
    """Shape of a layer with latent attention in a case."""

    heads: int
    """Query heads."""
    rank: int
    """Elements of the latent: C."""
    rotated: int
    """Elements of the key that is rotated: R."""
    more: int = 0
    """Elements of a token's row behind these, which belong to others."""

    @property
    def row(self) -> int:
        """Elements of a token's row in the cache."""
        return self.rank + self.rotated + self.more


@dataclass(frozen=True)
class Index:
    """Shape of an indexer of sparse attention in a case."""

    heads: int
    """Index heads."""
    size: int
    """Elements of an index query or key."""
    rotated: int
    """Leading dimensions of them that rotate."""
    row: int
    """Elements of a token's row in the cache; the key is its end."""


@dataclass(frozen=True)
class Scoring:
    """What an attention layer in a case does to its scores, and which it masks."""

    softcap: float = 0.0
    """Where scores are capped; 0: they are not."""
    sinks: bool = False
    """Whether heads have sinks: random ones, the first far above all scores, the last absent."""
    aligned: bool = False
    """Whether windows begin at multiples of their size."""
    alibi: bool = False
    """Whether heads have slopes: random ones, the first steep, the last 0."""
    by_query: bool = False
    """Whether each query has sinks of its own, random ones."""
    extent: int = 0
    """Keys to whose scores each query adds numbers of its own; 0: none."""

    @property
    def name(self) -> str:
        """What a case's name says of it."""
        name = f"{f'-cap{self.softcap:g}' if self.softcap else ''}{'-sinks' if self.sinks else ''}"
        name += "-query-sinks" if self.by_query else ""
        name += f"-extent{self.extent}" if self.extent else ""
        return f"{name}{'-aligned' if self.aligned else ''}{'-alibi' if self.alibi else ''}"

    def biases(self, heads: Heads, q: Tensor) -> dict[str, Any]:
        """The biases and the sinks of the queries `q` [T, Hq, D], if there are any."""
        found, shape = {}, (len(q), heads.query)
        if self.extent:
            biases = torch.randn(*shape, self.extent, device=q.device, dtype=q.dtype)
            found["rel_bias"] = biases
        if self.by_query:
            found["sinks"] = 3 * torch.randn(shape, device=q.device)
        return found

    def arguments(self, heads: Heads, device: torch.device) -> dict[str, Any]:
        """These arguments of the op, where they are not its defaults and not of queries."""
        arguments: dict[str, Any] = {"aligned": True} if self.aligned else {}
        if self.softcap:
            arguments["softcap"] = self.softcap
        if self.sinks:
            sinks = 3 * torch.randn(heads.query, device=device)
            sinks[0], sinks[-1] = 20.0, -torch.inf
            arguments["sinks"] = sinks
        if self.alibi:
            slopes = torch.rand(heads.query, device=device)
            slopes[0], slopes[-1] = 2.0, 0.0
            arguments["slopes"] = slopes
        return arguments


PLAIN = Scoring()
CAPPED, SINKS, BOTH = Scoring(2.0), Scoring(sinks=True), Scoring(3.0, True)
ALIGNED, ALIBI = Scoring(aligned=True), Scoring(alibi=True)

# Dtype, head size, window and scoring of full-size cases of both attention ops.
SCORED = [
    ("f32", 64, 0, BOTH),
    ("f32", 256, 100, CAPPED),
    ("f16", 128, 0, CAPPED),
    ("bf16", 64, 0, SINKS),
    ("bf16", 64, 100, SINKS),
    ("bf16", 128, 0, CAPPED),
    ("bf16", 128, 100, BOTH),
    ("bf16", 256, 0, CAPPED),
    ("bf16", 256, 300, CAPPED),
]


def row_bytes(kv: str, dtype: torch.dtype, size: int) -> int:
    """Returns the bytes of a key or value of one token and head, stored as `kv`."""
    if kv == PLAIN_KV:
        return size * dtype.itemsize
    return size if kv in FP8_KV else size * int(kv[3:]) // 8 + 4


def stored(memory: dict[str, Tensor], kv: str) -> dict[str, Tensor]:
    """Returns what `paged` makes, its cache stored as `kv` of QUANTIZED_KV. NaN stays NaN."""
    if kv == PLAIN_KV:
        return memory
    # In parts: wide copies of a large cache would not fit beside it.
    parts = memory["kv_cache"].split(4096)
    if kv in FP8_KV:
        return {**memory, "kv_cache": torch.cat([saturated(part, FP8_KV[kv]) for part in parts])}
    pairs = [quantized(wide(part), int(kv[3:])) for part in parts]
    codes, params = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    return {**memory, "kv_cache": codes, "kv_params": params}


def paged(
    lengths: Sequence[int],
    heads: Heads,
    dtype: torch.dtype,
    device: torch.device,
    spare: int = 3,
    unseen: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """kv_cache, block_tables, slots and kv_len of sequences of these lengths, in shuffled blocks.

    Whatever belongs to no sequence is NaN, and table entries past a sequence's end lie far outside
    the cache, so that touching either fails the test. `spare` blocks and as many rows of the table
    belong to no sequence. Of the first `unseen` tokens of each sequence, which a window has passed,
    whole blocks are others' by now: the table names them still, and they are NaN.
    """
    kv_len = torch.tensor(lengths, dtype=torch.int32, device=device)
    counts = (kv_len + heads.block_tokens - 1) // heads.block_tokens
    used = int(counts.sum())
    width = int(counts.max()) + 1
    blocks = torch.randperm(used + spare, device=device)[:used].int()
    taken = torch.arange(width, device=device) < counts[:, None]
    rows = torch.full((len(lengths), width), 1 << 28, dtype=torch.int32, device=device)
    rows[taken] = blocks
    slots = torch.randperm(len(lengths) + spare, device=device)[: len(lengths)].int()
    tables = torch.full((len(lengths) + spare, width), 1 << 28, dtype=torch.int32, device=device)
    tables[slots.long()] = rows
    shape = (used + spare, 2, heads.kv, heads.block_tokens, heads.size)
    cache = torch.randn(shape, dtype=dtype, device=device)
    position = torch.arange(width * heads.block_tokens, device=device)
    live = torch.zeros(used + spare, heads.block_tokens, dtype=torch.bool, device=device)
    own = position < kv_len[:, None]
    if unseen is not None:
        passed = torch.tensor(unseen, device=device) // heads.block_tokens * heads.block_tokens
        own &= position >= passed[:, None]
    live[blocks.long()] = own.view(-1, width, heads.block_tokens)[taken]
    cache.masked_fill_(~live[:, None, None, :, None], torch.nan)
    return {"kv_cache": cache, "block_tables": tables, "slots": slots, "kv_len": kv_len}


def runs(
    lengths: Sequence[tuple[int, int]], device: torch.device, spare: int = 2, pad: int = 0
) -> Runs:
    """Runs of sequences (tokens run, tokens in all), whose states are in shuffled blocks 0 to
    len(lengths) + `spare` - 1. If all run one token each, query_start is None. `pad` sequences that
    run nothing follow."""
    count = len(lengths)
    blocks = torch.randperm(count + spare, device=device)[:count].int()
    slots = torch.randperm(count + spare, device=device)[:count].int()
    tables = torch.full((count + spare, 3), 1 << 28, dtype=torch.int32, device=device)
    tables[slots.long(), 0] = blocks
    taken = torch.tensor([n for n, _ in lengths], dtype=torch.int32, device=device)
    ends = torch.nn.functional.pad(taken.cumsum(0).int(), (1, 0))
    kv_len = torch.tensor([n for _, n in lengths], dtype=torch.int32, device=device)
    if pad:
        slots = torch.cat((slots, slots[:1].expand(pad)))
        kv_len = torch.nn.functional.pad(kv_len, (0, pad))
        ends = torch.cat((ends, ends[-1:].expand(pad)))
    one_each = all(n == 1 for n, _ in lengths)
    start = None if one_each else ends
    return Runs(tables, slots, start, kv_len, max(n for n, _ in lengths))
