"""One step's device inputs in one buffer, so that one copy moves them all.

Every tensor that the model or the sampler reads has an address and a shape that depend only on the
step's `Shape`: steps of equal shape can replay one captured graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.worker.state import MAX_STOP_IDS, Limits, State, Work
from penstock.worker.step import Ints, Step

# Decode-only steps on a GPU are padded up to a multiple of the last step of this ladder: (up to
# this many rows, multiple). Few sequences are bound by the weights' bytes, where padding is free.
LADDER = ((1, 1), (2, 2), (4, 4), (8, 8), (256, 8), (512, 64), (1 << 30, 128))
ALIGNMENT = 4  # in words of 4 bytes: kernels like pointers at 16 bytes
LONGS = ("seed", "sample_position")


@dataclass(frozen=True)
class Shape:
    """Sizes that fix the layout of a step's inputs. Padding is counted."""

    tokens: int
    decodes: int
    chunks: int
    samples: int

    @property
    def samples_every_row(self) -> bool:
        """Whether hidden states are logit rows as they are."""
        return self.chunks == 0 and self.samples == self.tokens


@dataclass(frozen=True)
class Extras:
    """What a step writes into device state before it runs; rarely anything. Word ranges."""

    writes: int
    forks: int
    copies: int
    masks: int


@dataclass(frozen=True)
class Packed:
    """A step in a buffer: its inputs lie at offset 0, its extras behind them."""

    shape: Shape
    extras: Extras
    words: int  # used, of the buffer
    max_query: int


@lru_cache(maxsize=4096)
def layout(shape: Shape) -> dict[str, tuple[int, int]]:
    """Name -> (offset, length) in words; int64 fields take two words an entry."""
    t, d, c, r = shape.tokens, shape.decodes, shape.chunks, shape.samples
    lengths = {
        "seed": 2 * r, "sample_position": 2 * r, "sample_slot": r, "sample_row": r, "top_k": r,
        "temperature": r, "top_p": r, "ids": t, "id_slot": t, "position": t, "kv_slot": t,
        "decode_slot": d, "decode_kv_len": d, "chunk_slot": c, "query_start": c + 1 if c else 0,
        "chunk_kv_len": c,
    }  # fmt: skip
    offsets, at = {}, 0
    for name, length in lengths.items():
        offsets[name] = (at, length)
        at += -(-length // ALIGNMENT) * ALIGNMENT
    offsets["end"] = (at, 0)
    return offsets


def capacity(limits: Limits) -> int:
    """Words that the largest possible step needs."""
    rows = bucket(limits.slots)
    largest = Shape(limits.step_tokens + rows, rows, rows, rows)
    writes = 2 * 2 * limits.slots * limits.table_blocks + 2 * limits.step_tokens
    forks_and_copies = 2 * limits.slots + 2 * limits.blocks
    masks = 2 * limits.slots * MAX_STOP_IDS
    return layout(largest)["end"][0] + writes + forks_and_copies + masks


def bucket(count: int) -> int:
    """The padded size of a decode-only step."""
    multiple = next(multiple for limit, multiple in LADDER if count <= limit)
    return -(-count // multiple) * multiple


def tensors(shape: Shape, buffer: Tensor) -> dict[str, Tensor]:
    """The inputs as views of a device buffer [words] int32."""
    views = {}
    for name, (at, length) in layout(shape).items():
        view = buffer[at : at + length]
        if name in LONGS:
            view = view.view(torch.int64)
        elif name in ("temperature", "top_p"):
            view = view.view(torch.float32)
        views[name] = view
    return views


class Packer:
    """Writes a step's work into a host buffer. `pad` rounds decode-only steps up to a bucket."""

    def __init__(self, state: State, pad: bool) -> None:
        self.state = state
        self.pad = pad
        self.spare = state.limits.slots  # the row of device state that padding reads and writes

    def shape(self, work: Work) -> Shape:
        """The layout that this work takes."""
        runs, decodes, samples = len(work.slots), work.decodes, int(work.yields.sum())
        if self.pad and runs == decodes == samples and runs:
            decodes = samples = bucket(runs)
            return Shape(decodes, decodes, 0, samples)
        return Shape(int(work.counts.sum()), decodes, runs - decodes, samples)

    def pack(self, step: Step, work: Work, buffer: Ints) -> Packed:
        """Fills `buffer` [words] int32."""
        shape = self.shape(work)
        fields = {n: buffer[at : at + length] for n, (at, length) in layout(shape).items()}
        self._tokens(work, fields)
        self._sequences(work, fields)
        self._samples(work, fields)
        at = layout(shape)["end"][0]
        extras, end = self._extras(step, work, buffer, at)
        max_query = int(work.counts.max()) if shape.chunks else 1
        return Packed(shape, extras, end, max_query)

    def _tokens(self, work: Work, fields: dict[str, Ints]) -> None:
        state, tokens = self.state, int(work.counts.sum())
        slots = np.repeat(work.slots, work.counts)
        ends = np.cumsum(work.counts)
        positions = np.arange(tokens) + np.repeat(work.starts - ends + work.counts, work.counts)
        block_tokens = state.limits.block_tokens
        blocks = state.tables[slots, positions // block_tokens]
        _fill(fields["id_slot"], slots, self.spare)
        _fill(fields["position"], positions, 0)
        _fill(fields["kv_slot"], blocks * block_tokens + positions % block_tokens, -1)
        ids = fields["ids"]
        ids[:] = -1
        for run in np.flatnonzero(work.starts < state.held[work.slots]):
            first, at, count = work.starts[run], ends[run] - work.counts[run], work.counts[run]
            part = state.ids[work.slots[run]][first : first + count]
            ids[at : at + len(part)] = part

    def _sequences(self, work: Work, fields: dict[str, Ints]) -> None:
        kv_len, d = work.starts + work.counts, work.decodes
        _fill(fields["decode_slot"], work.slots[:d], self.spare)
        _fill(fields["decode_kv_len"], kv_len[:d], 0)
        if d < len(work.slots):
            fields["chunk_slot"][:] = work.slots[d:]
            fields["chunk_kv_len"][:] = kv_len[d:]
            fields["query_start"][0] = 0
            np.cumsum(work.counts[d:], out=fields["query_start"][1:])

    def _samples(self, work: Work, fields: dict[str, Ints]) -> None:
        state, slots = self.state, work.slots[work.yields]
        rows = (np.cumsum(work.counts) - 1)[work.yields]
        _fill(fields["sample_slot"], slots, self.spare)
        _fill(fields["sample_row"], rows, 0)
        _fill(fields["seed"].view(np.int64), state.seed[slots], 0)
        _fill(fields["sample_position"].view(np.int64), work.positions[work.yields], 0)
        _fill(fields["top_k"], state.top_k[slots], 0)
        _fill(fields["temperature"].view(np.float32), state.temperature[slots], 0)
        _fill(fields["top_p"].view(np.float32), state.top_p[slots], 1)

    def _extras(self, step: Step, work: Work, buffer: Ints, at: int) -> tuple[Extras, int]:
        """Pairs of equally long lists: (table place, block), (source, destination), (row, id)."""
        width = self.state.limits.table_blocks
        places = [w.slot * width + w.column + np.arange(len(w.blocks)) for w in work.writes]
        row_of = np.cumsum(work.yields) - 1
        pairs = (
            (_joined(places), _joined([w.blocks for w in work.writes])),
            (np.array([f[0] for f in work.forks]), np.array([f[1] for f in work.forks])),
            (step.copy_sources, step.copy_destinations),
            (
                _joined([np.full(len(ids), row_of[run]) for run, ids in work.masked]),
                _joined([ids for _, ids in work.masked]),
            ),
        )
        for pair in pairs:
            for values in pair:
                buffer[at : at + len(values)] = values
                at += len(values)
        return Extras(*(len(first) for first, _ in pairs)), at


def _fill(out: npt.NDArray[np.generic], values: npt.NDArray[np.generic], rest: int) -> None:
    out[: len(values)] = values
    out[len(values) :] = rest


def _joined(parts: list[npt.NDArray[np.int64]] | list[Ints]) -> npt.NDArray[np.int64]:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
