"""The shape of a step, and the packing of its device inputs into one buffer, which one copy moves.

Address and shape of every tensor that the model or the sampler reads depend only on the step's
`Shape`, so steps of equal shape can replay one captured graph. On a GPU, small steps are padded to
one of a few shapes; larger steps keep the device busy while the host launches their kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.worker.protocol.sampling_params import MOST_STOP_IDS
from penstock.worker.protocol.settings import Limits
from penstock.worker.protocol.step import Ints, Longs, Step
from penstock.worker.sampling import ROW_WORDS, column_length, row_places, row_words
from penstock.worker.state import State, Work

# A step of decodes alone is padded to a multiple: (up to this many rows, multiple). With few rows,
# reading the weights takes most of the time, so padding is free; with more rows it costs less than
# 4 % on average.
DECODES = ((1, 1), (2, 2), (4, 4), (64, 8), (128, 16), (256, 32), (512, 64), (1 << 30, 128))
# A step with prompts is padded at its end, to one of these numbers of tokens. They suit the tiles
# of matrix products: on an H200, 448 tokens of an 8B model take longer than 512 do.
TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
LARGER = 512  # larger steps are not padded; multiples of this suit the same tiles
# Maximum decode rows of such a step. Unused ones cost nothing: chunks begin in them.
MIXED_DECODES = (0, 32, 256, 512, 1024)
LEAST_MIXED = 64  # tokens; as many with more prompts than the first of PROMPTS
# Maximum prompts of such a step, and tokens of each. Attention is launched for all of both, and its
# programs without a token take time too, so the products are equal.
PROMPTS = ((4, 2048), (16, 512), (64, 128))
ALIGNMENT = 4  # in words of 4 bytes: kernels like pointers at 16 bytes
LONGS = ("sample_position", "sample_slot")
KV_SLOT = "kv_slot"


Views = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """The sizes that determine the layout of a step's inputs, padding included."""

    tokens: int
    decodes: int
    chunks: int
    samples: int
    max_query: int = 1  # tokens of the longest chunk, or more
    padded: bool = False  # each run has its row of samples: decodes first, then chunks

    @property
    def samples_every_row(self) -> bool:
        """Whether every row of the hidden states is sampled, in order."""
        return self.chunks == 0 and self.samples == self.tokens


def step_sizes(most: int) -> list[int]:
    """Returns the step sizes in tokens that suit a GPU, at most `most`, in ascending order."""
    larger = range(TOKENS[-1] + LARGER, most + 1, LARGER)
    return [size for size in (*TOKENS, *larger) if LEAST_MIXED <= size <= most]


def padded_decodes(count: int) -> int:
    """Returns the padded number of rows of a step of decodes alone."""
    multiple = next(multiple for limit, multiple in DECODES if count <= limit)
    return -(-count // multiple) * multiple


@lru_cache(maxsize=4096)
def padded_shape(decodes: int, chunks: int, chunk_tokens: int, longest: int) -> Shape | None:
    """Returns the smallest padded shape for these runs, whose longest chunk has `longest` tokens;
    None for steps too large to need one."""
    if chunks == 0:
        rows = padded_decodes(decodes)
        return Shape(rows, rows, 0, rows, padded=True)
    fitting = ((c, most) for c, most in PROMPTS if chunks <= c and longest <= most)
    c, most = next(fitting, (0, 0))
    tokens = decodes + chunk_tokens
    t = _first(TOKENS, max(tokens, LEAST_MIXED) if decodes or c > PROMPTS[0][0] else tokens)
    d = _first(MIXED_DECODES, decodes)
    if t is None or d is None or not c:
        return None
    d = min(d, t)
    return Shape(t, d, c, d + c, max_query=min(t, most), padded=True)


def _first(ladder: tuple[int, ...], least: int) -> int | None:
    return next((size for size in ladder if size >= least), None)


def kv_slot(group: int) -> str:
    """Returns the field name of a KV group's slot_mapping; each group has a field, for
    alignment."""
    return f"{KV_SLOT}{group}"


@lru_cache(maxsize=4096)
def layout(shape: Shape, groups: int = 1) -> dict[str, tuple[int, int]]:
    """Name -> (offset, length) in words, for a model of `groups` KV groups; int64 fields take two
    words an entry."""
    t, d, c, r = shape.tokens, shape.decodes, shape.chunks, shape.samples
    lengths = {
        "sample_position": 2 * r, "sample_slot": 2 * r, "sample_row": r, "ids": t, "id_slot": t,
        "position": t, **{kv_slot(group): t for group in range(groups)}, "decode_slot": d,
        "decode_kv_len": d, "chunk_slot": c, "query_start": c + 1 if c else 0, "chunk_kv_len": c,
    }  # fmt: skip
    offsets, at = {}, 0
    for name, length in lengths.items():
        offsets[name] = (at, length)
        at += -(-length // ALIGNMENT) * ALIGNMENT
    offsets["end"] = (at, 0)
    return offsets


def tensors(shape: Shape, buffer: Tensor, groups: int = 1) -> Views:
    """The inputs as views of a device buffer [words] int32."""
    views = {}
    for name, (at, length) in layout(shape, groups).items():
        view = buffer[at : at + length]
        if name in LONGS:
            view = view.view(torch.int64)
        views[name] = view
    return views


def fill_padding(views: Views, spare: int) -> None:
    """Fills the inputs of an empty step: every row is padding, and reads and writes row `spare`."""
    for name, view in views.items():
        view.fill_(spare if name.endswith("_slot") else 0)
        if name.startswith(KV_SLOT):
            view.fill_(-1)
    views["ids"].fill_(-1)


@dataclass(frozen=True)
class Extras:
    """Word ranges of the updates to device state before the step runs; usually empty."""

    writes: int
    forks: int
    copies: tuple[int, ...]  # by KV group
    steered: int
    masks: int
    params: int


@dataclass(frozen=True)
class Packed:
    """A packed step: its inputs begin at offset 0 of the buffer, its extras follow."""

    shape: Shape
    samples: Longs  # for each yielding run, its row among the samples
    extras: Extras
    words: int  # used, of the buffer


def most_samples(limits: Limits) -> int:
    """Returns the maximum number of sample rows of a step, padding included."""
    return max(padded_decodes(limits.slots), MIXED_DECODES[-1] + PROMPTS[-1][0])


def buffer_words(limits: Limits) -> int:
    """Returns the words that the largest possible step needs."""
    rows = most_samples(limits)
    largest = Shape(max(limits.step_tokens, TOKENS[-1]) + rows, rows, rows, rows)
    groups = len(limits.pools)
    writes = groups * (2 * 2 * limits.slots * limits.table_blocks + 2 * limits.step_tokens)
    forks_and_copies = 2 * limits.slots + 2 * sum(pool.blocks for pool in limits.pools)
    steered = 2 * limits.slots
    params = 2 * 2 * limits.slots * ROW_WORDS  # each slot may be entered and forked
    masks = 2 * limits.slots * MOST_STOP_IDS
    end = layout(largest, groups)["end"][0]
    return end + writes + forks_and_copies + steered + masks + params


class Packer:
    """Writes a step's work into a host buffer. `pad` pads small steps to one of a few shapes.

    Decodes come first, then the chunks, then padding.
    """

    def __init__(self, state: State, pad: bool) -> None:
        self.state = state
        self.pad = pad
        self.groups = len(state.limits.pools)
        self.spare = state.limits.slots  # the row of device state that padding reads and writes
        self.column_length = column_length(state.limits.slots)

    def shape(self, work: Work) -> Shape:
        """Returns the shape of a step with this work."""
        decodes, chunks, samples = work.decodes, len(work.slots) - work.decodes, work.yielding
        tokens, max_query = int(work.counts.sum()), int(work.counts.max()) if chunks else 1
        if self.pad and samples:
            padded = padded_shape(decodes, chunks, tokens - decodes, max_query)
            if padded is not None:
                return padded
        return Shape(tokens, decodes, chunks, samples, max_query)

    def pack(self, step: Step, work: Work, buffer: Ints) -> Packed:
        """Fills `buffer` [words] int32."""
        shape = self.shape(work)
        places = layout(shape, self.groups)
        fields = {n: buffer[at : at + length] for n, (at, length) in places.items()}
        self._tokens(work, fields)
        self._sequences(work, fields)
        samples = self._samples(work, fields, shape)
        extras, end = self._extras(step, work, samples, buffer, places["end"][0])
        return Packed(shape, samples, extras, end)

    def _tokens(self, work: Work, fields: dict[str, Ints]) -> None:
        state, slots, positions = self.state, work.slots, work.starts
        ends = work.counts.cumsum()
        if work.decodes < len(work.slots):
            slots = slots.repeat(work.counts)
            firsts = (work.starts - ends + work.counts).repeat(work.counts)
            positions = firsts + np.arange(len(slots))
        block_tokens = state.limits.block_tokens
        columns, offsets = positions // block_tokens, positions % block_tokens
        for group, (pool, tables) in enumerate(
            zip(state.limits.pools, state.tables.entries, strict=True)
        ):
            field = fields[kv_slot(group)]
            if pool.recurrent:
                field[:] = -1  # a state has no place for each token
                continue
            places = tables[slots, columns] * block_tokens + offsets
            _fill(field, places, -1)
        _fill(fields["id_slot"], slots, self.spare)
        _fill(fields["position"], positions, 0)
        ids = fields["ids"]
        ids[:] = -1
        for run in (work.starts < state.held[work.slots]).nonzero()[0]:
            first, at, count = work.starts[run], ends[run] - work.counts[run], work.counts[run]
            part = state.ids[work.slots[run]][first : first + count]
            ids[at : at + len(part)] = part

    def _sequences(self, work: Work, fields: dict[str, Ints]) -> None:
        kv_len, d = work.starts + work.counts, work.decodes
        _fill(fields["decode_slot"], work.slots[:d], self.spare)
        _fill(fields["decode_kv_len"], kv_len[:d], 0)
        if len(fields["chunk_slot"]):
            _fill(fields["chunk_slot"], work.slots[d:], self.spare)
            _fill(fields["chunk_kv_len"], kv_len[d:], 0)
            ends = d + work.counts[d:].cumsum()
            fields["query_start"][0] = d
            _fill(fields["query_start"][1:], ends, ends[-1])

    def _samples(self, work: Work, fields: dict[str, Ints], shape: Shape) -> Longs:
        """Fills the inputs of the sampler; returns the row of each yielding run."""
        slots = work.slots[work.yields]
        runs, rows = work.yields.nonzero()[0], (work.counts.cumsum() - 1)[work.yields]
        places = np.arange(len(runs))
        if shape.padded:
            places = runs + (runs >= work.decodes) * (shape.decodes - work.decodes)
        _scatter(fields["sample_slot"].view(np.int64), slots, self.spare, places)
        _scatter(fields["sample_row"], rows, 0, places)
        positions = fields["sample_position"].view(np.int64)
        _scatter(positions, work.positions[work.yields], 0, places)
        return places

    def _extras(
        self, step: Step, work: Work, samples: Longs, buffer: Ints, at: int
    ) -> tuple[Extras, int]:
        """Pairs of equally long lists: (table place, block), (source, destination) of forks and of
        each KV group's copies, (slot, id), (row, id), (place in the slots' parameters, word)."""
        steered, groups = len(step.steered_slots), range(self.groups)
        changes = work.writes, work.forks, work.params, step.copies, steered, work.masked
        if not any(changes):
            return Extras(0, 0, (0,) * self.groups, 0, 0, 0), at
        rows, width = self.spare + 1, self.state.limits.table_blocks
        firsts = [((w.group * rows + w.slot) * width + w.column) for w in work.writes]
        places = [
            first + np.arange(len(write.blocks))
            for first, write in zip(firsts, work.writes, strict=True)
        ]
        row_of = dict(zip(work.yields.nonzero()[0].tolist(), samples.tolist(), strict=True))
        copies = [[some for some in step.copies if some.group == group] for group in groups]
        pairs = (
            (_joined(places), _joined([w.blocks for w in work.writes])),
            (np.array([f[0] for f in work.forks]), np.array([f[1] for f in work.forks])),
            *(
                (_joined([c.sources for c in some]), _joined([c.destinations for c in some]))
                for some in copies
            ),
            (step.steered_slots, step.steered_tokens),
            (
                _joined([np.full(len(ids), row_of[run]) for run, ids in work.masked]),
                _joined([ids for _, ids in work.masked]),
            ),
            self._params(work),
        )
        for pair in pairs:
            for values in pair:
                buffer[at : at + len(values)] = values
                at += len(values)
        writes, forks, *copied, steered, masks, params = (len(first) for first, _ in pairs)
        return Extras(writes, forks, tuple(copied), steered, masks, params), at

    def _params(self, work: Work) -> tuple[Ints, Ints]:
        """Places and words of the sampling parameters that change."""
        slots = np.array(work.params, np.int32)
        words = row_words(self.state.params[slots])
        return row_places(slots, self.column_length).ravel(), words.ravel()


Array = npt.NDArray[np.generic]


def _fill(out: Array, values: Array, rest: int) -> None:
    """Copies values and pads with `rest`."""
    out[: len(values)] = values
    out[len(values) :] = rest


def _scatter(out: Array, values: Array, rest: int, places: Longs) -> None:
    if len(places) < len(out):
        out[:] = rest
    out[places] = values


def _joined(parts: list[npt.NDArray[np.int64]] | list[Ints]) -> npt.NDArray[np.int64]:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
