"""The safetensors files of a model directory: what they hold, and where."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from penstock.faults import BadModel

SUFFIX = ".safetensors"
SINGLE = "model.safetensors"
INDEX_SUFFIX = ".index.json"
INDEX = SINGLE + INDEX_SUFFIX
# By their names in safetensors. Which of them a tensor may have, its layer's weight format says.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


Shapes = Mapping[str, tuple[int, ...]]  # of tensors, by their names


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: row-major, from byte `offset` on."""

    path: Path
    file: int  # open descriptor
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first dimension."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def tensor(self) -> Tensor:
        """The whole tensor, on the CPU. Raises BadModel if the file became shorter."""
        count = math.prod(self.shape)
        if count == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        buffer = torch.empty(count * self.dtype.itemsize, dtype=torch.uint8)
        replace(self, shape=(1, count)).read(0, buffer.numpy().data)
        return buffer.view(self.dtype).view(self.shape)

    def read(self, row: int, buffer: memoryview) -> None:
        """Fills `buffer` from row `row` on. Raises BadModel if the file became shorter."""
        at, done = self.offset + row * self.row_bytes, 0
        while done < len(buffer):
            count = os.preadv(self.file, [buffer[done:]], at + done)
            if count == 0:
                raise BadModel(f"{self.path} became shorter while it was read; download it again")
            done += count


class Checkpoint:
    """Tensors by name over one or many files. Use as a context manager.

    Raises BadModel on entry when a file is missing, truncated or does not hold what the index says.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._stored: dict[str, StoredTensor] = {}

    def __enter__(self) -> Checkpoint:
        with ExitStack() as opened:
            opened.callback(self._stack.close)  # unless all is well
            index_file = self._index_file()
            index = {} if index_file is None else listed(index_file)
            for name in sorted(set(index.values())) or [self._single()]:
                self._stored |= self._open(self.directory / name)
            for key, name in index.items():
                if key not in self._stored or self._stored[key].path.name != name:
                    path, by = self.directory / name, index_file and index_file.name
                    raise BadModel(f"{path} lacks tensor {key}, which {by} lists")
            opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._stored.clear()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __getitem__(self, name: str) -> StoredTensor:
        return self._stored[name]

    def renew(self, older: Mapping[str, str]) -> None:
        """Replaces beginnings of names, those of `older`, by newer ones, unless a name has that
        already; where they begin with a dot, parts of names."""
        older = {old: new for old, new in older.items() if not self._has(new)}
        self._stored = {_renewed(name, older): stored for name, stored in self._stored.items()}

    def rename(self, names: Mapping[str, str]) -> None:
        """Replaces whole names, old by new ones."""
        self._stored = {names.get(name, name): stored for name, stored in self._stored.items()}

    def _has(self, part: str) -> bool:
        if part.startswith("."):
            return any(part in name for name in self._stored)
        return any(name.startswith(part) for name in self._stored)

    def _index_file(self) -> Path | None:
        """The file that says which file has which tensor; None beside `SINGLE`, which comes first
        as in transformers: an index beside it may be that of an older download. Quantized
        checkpoints have other names than `model` (gptq_model-4bit-128g.safetensors); the launcher
        (`weight_files.rs`) finds the same files."""
        if (self.directory / SINGLE).is_file():
            return None
        if (self.directory / INDEX).is_file():
            return self.directory / INDEX
        others = self._ending(SUFFIX + INDEX_SUFFIX)
        return others[0] if len(others) == 1 else None

    def _single(self) -> str:
        """The name of the file that has all tensors."""
        files = self._ending(SUFFIX)
        if SINGLE in (names := [file.name for file in files]) or not files:
            return SINGLE
        if len(files) > 1:
            raise BadModel(
                f"{self.directory} has {len(files)} weight files ({', '.join(names[:3])}), and no "
                f"{INDEX} says which file has which tensor; download the model again"
            )
        return names[0]

    def _ending(self, suffix: str) -> list[Path]:
        return sorted(self.directory.glob(f"*{suffix}"))

    def _open(self, path: Path) -> dict[str, StoredTensor]:
        if not path.is_file():
            if any(self.directory.glob("pytorch_model*.bin")):
                raise BadModel(
                    f"{path} is missing, and pickles (pytorch_model*.bin) are not loaded; run "
                    f"`penstock convert {self.directory} OUT`, and take OUT"
                )
            raise BadModel(f"{path} is missing; download the model again")
        try:
            # The library checks the header, down to every tensor's place; where is for us to read.
            with safe_open(path, framework="pt", device="cpu"):
                return self._tensors(path)
        except (SafetensorError, OSError) as error:
            size = path.stat().st_size
            raise BadModel(
                f"{path} ({size} bytes) is truncated or damaged: {error}; download it again"
            ) from error

    def _tensors(self, path: Path) -> dict[str, StoredTensor]:
        file = os.open(path, os.O_RDONLY)
        self._stack.callback(os.close, file)
        length = int.from_bytes(os.pread(file, 8, 0), "little")
        header: dict[str, Any] = json.loads(os.pread(file, length, 8))
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            dtype = DTYPES.get(entry["dtype"])
            if dtype is None:
                raise BadModel(
                    f"{path}: tensor {name} is {entry['dtype']}; only {', '.join(DTYPES)} can be "
                    "loaded, so take the unquantized model"
                )
            offset = 8 + length + entry["data_offsets"][0]
            found[name] = StoredTensor(path, file, offset, tuple(entry["shape"]), dtype)
        return found


def listed(index: Path) -> dict[str, str]:
    """File names by tensor. Raises BadModel if the index is damaged."""
    try:
        names = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadModel(f"{index} is damaged ({error!r}); download it again") from error
    for key, name in names.items():
        if not isinstance(name, str) or "/" in name:
            raise BadModel(f"{index} names no file for {key}, but {name!r}; download it again")
    return names


def _renewed(name: str, older: Mapping[str, str]) -> str:
    for old, new in older.items():
        if name.startswith(old) or (old.startswith(".") and old in name):
            return name.replace(old, new, 1)
    return name
