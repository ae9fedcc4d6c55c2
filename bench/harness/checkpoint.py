"""Writes a checkpoint of random weights with a made tokenizer, as fast as memory takes it.

    PYTHONPATH=bench python -m harness.checkpoint 8b /dev/shm/8b

The result loads like any model from a hub. Weights are normal with deviation 0.02, norms are one,
bfloat16; they are drawn on the GPU if there is one. A shape with a quantization_config gets codes
of random bits, and scales that are all equal.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from penstock.layers import Build
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import read_methods
from penstock.weights.files import DTYPES
from penstock.weights.target import Target

from harness.shapes import SHAPES
from harness.vocabulary import write_tokenizer

FILE_BYTES = 4 << 30
DEVIATION = 0.02
SCALE = 2.0**-7
"""Of quantized weights: codes of a few units become weights of about `DEVIATION`."""
E8M0_SCALE = 127 - 7
"""The same as the biased exponent of an e8m0 number."""
WRITERS = 8
FLOAT32 = "weight_scale_inv"
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Stored:
    """What a checkpoint says of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """In bytes."""
        return self.count * self.dtype.itemsize

    def draw(self, device: torch.device) -> torch.Tensor:
        """Its entries, flat."""
        entries = torch.empty(self.count, dtype=self.dtype, device=device)
        if "scale" in self.name:
            return entries.fill_(SCALE if self.dtype.is_floating_point else E8M0_SCALE)
        if not self.dtype.is_floating_point:
            whole = entries.view(torch.int64) if self.size % 8 == 0 else entries
            whole.random_()
            return entries
        if self.dtype == torch.float8_e4m3fn:
            drawn = torch.empty(self.count, dtype=torch.bfloat16, device=device)
            return entries.copy_(drawn.normal_(std=DEVIATION / SCALE))
        return entries.fill_(1) if len(self.shape) == 1 else entries.normal_(std=DEVIATION)


@dataclass(frozen=True)
class Piece:
    """A tensor's place: `offset` bytes into the file at `path`."""

    path: Path
    offset: int
    tensor: Stored


def tensors(config: dict[str, Any]) -> list[Stored]:
    """The tensors of a checkpoint."""
    meta = torch.device("meta")
    methods = read_methods(config, torch.bfloat16, meta)
    cls = family(config)
    model = cls(cls.read_config(config), Build(torch.bfloat16, meta, Group(), methods, 1))
    return [stored(name, parts[0]) for name, parts in model.checkpoint_targets().items()]


def stored(name: str, target: Target) -> Stored:
    """How a checkpoint usually stores a tensor."""
    if target.suffixes:
        name = f"{name.rpartition('.')[0]}.{target.suffixes[0]}"
    dtype = target.dtype
    if dtype == torch.float32 and not name.endswith(FLOAT32):
        dtype = torch.bfloat16  # a layer may keep it in float32, files rarely do
    return Stored(name, target.shapes[0], dtype)


def lay_out(folder: Path, found: list[Stored]) -> list[Piece]:
    """Writes the files' headers and the index; the pieces are still to be filled."""
    files: list[list[Stored]] = [[]]
    room = FILE_BYTES
    for tensor in found:
        room -= tensor.size
        if room < 0 and files[-1]:
            files.append([])
            room = FILE_BYTES - tensor.size
        files[-1].append(tensor)
    pieces: list[Piece] = []
    index: dict[str, str] = {}
    for number, held in enumerate(files, 1):
        path = folder / f"model-{number:05}-of-{len(files):05}.safetensors"
        ends = list(accumulate(tensor.size for tensor in held))
        begins = [0, *ends[:-1]]
        header = {
            tensor.name: {
                "dtype": NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
            for tensor, begin, end in zip(held, begins, ends, strict=True)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 64)
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        data = 8 + len(text)
        os.truncate(path, data + ends[-1])
        for tensor, begin in zip(held, begins, strict=True):
            pieces.append(Piece(path, data + begin, tensor))
            index[tensor.name] = path.name
    sizes = {"total_size": sum(tensor.size for tensor in found)}
    whole = {"metadata": sizes, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(whole))
    return pieces


class Filler:
    """Draws tensors and writes them; one pinned buffer for each thread."""

    def __init__(self, largest: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.largest = largest
        self.own = threading.local()

    def fill(self, piece: Piece) -> None:
        if not hasattr(self.own, "buffer"):
            pinned = self.device.type == "cuda"
            self.own.buffer = torch.empty(self.largest, dtype=torch.uint8, pin_memory=pinned)
        buffer = self.own.buffer[: piece.tensor.size]
        buffer.copy_(piece.tensor.draw(self.device).view(torch.uint8))
        content = memoryview(buffer.numpy())
        with piece.path.open("r+b") as file:
            done = 0
            while done < len(content):
                done += os.pwrite(file.fileno(), content[done:], piece.offset + done)


def write_checkpoint(folder: Path, config: dict[str, Any]) -> int:
    """Writes a whole model directory; returns the bytes of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    end = write_tokenizer(folder, config["vocab_size"])
    ids = {"bos_token_id": None, "eos_token_id": end}
    (folder / "config.json").write_text(json.dumps(config | ids))
    found = tensors(config)
    pieces = lay_out(folder, found)
    filler = Filler(max(tensor.size for tensor in found))
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(filler.fill, pieces))
    return sum(tensor.size for tensor in found)


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(f"usage: python -m harness.checkpoint {{{','.join(SHAPES)}}} FOLDER")
    began = time.perf_counter()
    size = write_checkpoint(Path(sys.argv[2]), SHAPES[sys.argv[1]])
    seconds = time.perf_counter() - began
    print(f"{size / 1e9:.1f} GB in {seconds:.1f} s, {size / 1e9 / seconds:.1f} GB/s")


if __name__ == "__main__":
    main()
