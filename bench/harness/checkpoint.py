"""Writes a checkpoint of random weights with a made tokenizer, as fast as memory takes it.

    PYTHONPATH=bench python -m harness.checkpoint 8b /dev/shm/8b

The result loads like any model from a hub. Weights are normal with deviation 0.02, norms are one,
bfloat16; they are drawn on the GPU if there is one.
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
from penstock.quant import Methods, Unquantized

from harness.shapes import SHAPES
from harness.vocabulary import write_tokenizer

FILE_BYTES = 4 << 30
DEVIATION = 0.02
WRITERS = 8
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A tensor's place: `offset` bytes into the file at `path`."""

    path: Path
    offset: int
    shape: Shape


def tensors(config: dict[str, Any]) -> dict[str, Shape]:
    """Names and shapes of a checkpoint."""
    meta = torch.device("meta")
    methods = Methods(Unquantized(torch.bfloat16, meta))
    cls = family(config)
    model = cls(cls.read_config(config), Build(torch.bfloat16, meta, Group(), methods, 1))
    return {name: parts[0].shape for name, parts in model.checkpoint_targets().items()}


def lay_out(folder: Path, shapes: dict[str, Shape]) -> list[Piece]:
    """Writes the files' headers and the index; the pieces are still to be filled."""
    files: list[list[str]] = [[]]
    room = FILE_BYTES
    for name, shape in shapes.items():
        room -= 2 * math.prod(shape)
        if room < 0 and files[-1]:
            files.append([])
            room = FILE_BYTES - 2 * math.prod(shape)
        files[-1].append(name)
    pieces: list[Piece] = []
    index: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        path = folder / f"model-{number:05}-of-{len(files):05}.safetensors"
        ends = list(accumulate(2 * math.prod(shapes[name]) for name in names))
        begins = [0, *ends[:-1]]
        header = {
            name: {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [begin, end]}
            for name, begin, end in zip(names, begins, ends, strict=True)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 64)
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        data = 8 + len(text)
        os.truncate(path, data + ends[-1])
        for name, begin in zip(names, begins, strict=True):
            pieces.append(Piece(path, data + begin, shapes[name]))
        index |= dict.fromkeys(names, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return pieces


class Filler:
    """Draws tensors and writes them; one pinned buffer for each thread."""

    def __init__(self, largest: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.largest = largest
        self.own = threading.local()

    def fill(self, piece: Piece) -> None:
        count = math.prod(piece.shape)
        if not hasattr(self.own, "buffer"):
            pinned = self.device.type == "cuda"
            self.own.buffer = torch.empty(self.largest, dtype=torch.bfloat16, pin_memory=pinned)
        drawn = torch.empty(count, dtype=torch.bfloat16, device=self.device)
        if len(piece.shape) == 1:
            drawn.fill_(1)
        else:
            drawn.normal_(std=DEVIATION)
        self.own.buffer[:count].copy_(drawn)
        content = memoryview(self.own.buffer[:count].view(torch.int16).numpy()).cast("B")
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
    shapes = tensors(config)
    pieces = lay_out(folder, shapes)
    filler = Filler(max(map(math.prod, shapes.values())))
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(filler.fill, pieces))
    return 2 * sum(map(math.prod, shapes.values()))


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(f"usage: python -m harness.checkpoint {{{','.join(SHAPES)}}} FOLDER")
    began = time.perf_counter()
    size = write_checkpoint(Path(sys.argv[2]), SHAPES[sys.argv[1]])
    seconds = time.perf_counter() - began
    print(f"{size / 1e9:.1f} GB in {seconds:.1f} s, {size / 1e9 / seconds:.1f} GB/s")


if __name__ == "__main__":
    main()
