"""The safetensors files of a model directory, memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from penstock.faults import BadModel

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Checkpoint:
    """Tensors by name over one or many files. Use as a context manager.

    Raises BadModel on entry when a file is missing, truncated or does not hold what the index says.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        self._index: dict[str, str] = {}

    def __enter__(self) -> Checkpoint:
        for name in self._file_names():
            self._files[name] = self._open(self.directory / name)
        found = {key: name for name, file in self._files.items() for key in file.keys()}  # noqa: SIM118
        for key, name in self._index.items():
            if found.get(key) != name:
                raise BadModel(f"{self.directory / name} lacks tensor {key}, which {INDEX} lists")
        self._index = found
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._files.clear()

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor as stored."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, region: tuple[slice, ...]) -> Any:
        """The region of a tensor, on the host, without reading the rest of it."""
        return self._slice(name)[region]

    def _slice(self, name: str) -> Any:
        return self._files[self._index[name]].get_slice(name)

    def _file_names(self) -> list[str]:
        index = self.directory / INDEX
        if not index.is_file():
            return [SINGLE]
        try:
            self._index = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadModel(f"{index} is damaged ({error!r}); download it again") from error
        return sorted(set(self._index.values()))

    def _open(self, path: Path) -> Any:
        if not path.is_file():
            others = sorted(p.name for p in self.directory.glob("*.bin"))
            hint = f"; {others[0]} is a pickle, convert it to safetensors" if others else ""
            raise BadModel(f"{path} is missing; download the model again{hint}")
        try:
            return self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        except (SafetensorError, OSError) as error:
            size = path.stat().st_size
            raise BadModel(
                f"{path} ({size} bytes) is truncated or damaged: {error}; download it again"
            ) from error
