"""The sizes of a step, and how its inputs lie in one buffer.

Every tensor that the model or the sampler reads has an address and a shape that depend only on the
step's `Shape`: steps of equal shape can replay one captured graph. On a GPU, small steps are padded
to shapes that come again; larger ones keep the device busy while the host launches their kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from penstock.sampling import SamplingRows

# Decodes alone are padded up to a multiple: (up to this many rows, multiple). Few sequences are
# bound by the weights' bytes, where padding is free; of more it costs less than 4 % on average.
DECODES = ((1, 1), (2, 2), (4, 4), (256, 8), (512, 64), (1 << 30, 128))
# Decodes, chunks and the chunks' tokens of a step that has both, coarser, or no shape would return.
MIXED_DECODES = (0, 8, 16, 32, 64, 128, 256)
CHUNKS = (1, 2, 4)
CHUNK_TOKENS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
ALIGNMENT = 4  # in words of 4 bytes: kernels like pointers at 16 bytes
LONGS = ("seed", "sample_position", "sample_slot")
FLOATS = ("temperature", "top_p")


Views = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes that fix the layout of a step's inputs. Padding is counted."""

    tokens: int
    decodes: int
    chunks: int
    samples: int
    max_query: int = 1  # tokens of the longest chunk, or more
    padded: bool = False  # each run has its row of samples: decodes first, then chunks

    @property
    def samples_every_row(self) -> bool:
        """Whether hidden states are logit rows as they are."""
        return self.chunks == 0 and self.samples == self.tokens


def padded_decodes(count: int) -> int:
    """The padded size of a step of decodes alone."""
    multiple = next(multiple for limit, multiple in DECODES if count <= limit)
    return -(-count // multiple) * multiple


def padded_shape(decodes: int, chunks: int, chunk_tokens: int) -> Shape | None:
    """The smallest padded shape that holds these runs; None for steps too large to need one."""
    if chunks == 0:
        rows = padded_decodes(decodes)
        return Shape(rows, rows, 0, rows, padded=True)
    d, c = _first(MIXED_DECODES, decodes), _first(CHUNKS, chunks)
    t = _first(CHUNK_TOKENS, chunk_tokens)
    if d is None or c is None or t is None:
        return None
    return Shape(d + t, d, c, d + c, max_query=t, padded=True)


def _first(ladder: tuple[int, ...], least: int) -> int | None:
    return next((size for size in ladder if size >= least), None)


@lru_cache(maxsize=4096)
def layout(shape: Shape) -> dict[str, tuple[int, int]]:
    """Name -> (offset, length) in words; int64 fields take two words an entry."""
    t, d, c, r = shape.tokens, shape.decodes, shape.chunks, shape.samples
    lengths = {
        "seed": 2 * r, "sample_position": 2 * r, "sample_slot": 2 * r, "sample_row": r, "top_k": r,
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


def tensors(shape: Shape, buffer: Tensor) -> Views:
    """The inputs as views of a device buffer [words] int32."""
    views = {}
    for name, (at, length) in layout(shape).items():
        view = buffer[at : at + length]
        if name in LONGS:
            view = view.view(torch.int64)
        elif name in FLOATS:
            view = view.view(torch.float32)
        views[name] = view
    return views


def sampling_rows(views: Views) -> SamplingRows:
    """The parameters that travel with every step."""
    return SamplingRows(
        views["temperature"],
        views["top_k"],
        views["top_p"],
        views["seed"],
        views["sample_position"],
    )


def fill_padding(views: Views, spare: int) -> None:
    """Makes a step of no sequence: every row is padding, and reads and writes row `spare`."""
    for name, view in views.items():
        view.fill_(spare if name.endswith("_slot") else 0)
    views["kv_slot"].fill_(-1)
    views["ids"].fill_(-1)
    views["top_p"].fill_(1)
