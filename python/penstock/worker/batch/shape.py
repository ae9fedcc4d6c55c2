"""The shape of a step, and the layout of its inputs in one buffer.

Address and shape of every tensor that the model or the sampler reads depend only on the step's
`Shape`, so steps of equal shape can replay one captured graph. On a GPU, small steps are padded to
one of a few shapes; larger steps keep the device busy while the host launches their kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

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
LEAST_MIXED = 64  # tokens
CHUNKS = 4  # maximum prompts in such a step
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
def padded_shape(decodes: int, chunks: int, chunk_tokens: int) -> Shape | None:
    """Returns the smallest padded shape for these runs; None for steps too large to need one."""
    if chunks == 0:
        rows = padded_decodes(decodes)
        return Shape(rows, rows, 0, rows, padded=True)
    tokens = decodes + chunk_tokens
    t = _first(TOKENS, max(tokens, LEAST_MIXED) if decodes else tokens)
    d = _first(MIXED_DECODES, decodes)
    if t is None or d is None or chunks > CHUNKS:
        return None
    d = min(d, t)
    return Shape(t, d, CHUNKS, d + CHUNKS, max_query=t, padded=True)


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
