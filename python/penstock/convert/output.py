"""The folder that is written: safetensors of limited size, their index and other files."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from penstock.faults import BadSetting

PARTIAL = ".partial"
CONFIG = "config.json"
COPIED = (".json", ".jinja", ".txt", ".md", ".model", ".tiktoken", "LICENSE", "NOTICE")
"""Ends of the names of files that are copied."""
VERSIONS = "tokenizer.model.v*"  # of Mistral's tokenizers
TEMPLATES = "additional_chat_templates"


class Output:
    """The files of a run. They lie in OUT/.partial until all are there; if the run fails, none
    remains. Use as a context manager.

    folder: for files that the caller writes. shapes: of the tensors, by name. bytes: of all
    tensors. dtype: of the last one.
    """

    def __init__(self, out: Path, limit: int) -> None:
        """limit: the most bytes of a file, if it has more than one tensor."""
        self.out, self.limit = out, limit
        self.folder = out / PARTIAL
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.bytes = 0
        self.dtype = torch.float32
        self._files: dict[str, int] = {}  # index of each tensor's file
        self._pending: dict[str, Tensor] = {}
        self._size = self._count = 0
        self._is_new = not out.exists()

    def __enter__(self) -> Output:
        """Raises BadSetting if the folder holds something."""
        # A run that was killed leaves its unfinished files.
        if not self._is_new and (
            not self.out.is_dir() or any(file.name != PARTIAL for file in self.out.iterdir())
        ):
            raise BadSetting(f"{self.out} exists already; choose another folder, or delete it")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind is not None and self._is_new:
            with suppress(OSError):
                self.out.rmdir()

    def check_space(self, needed: int) -> None:
        """Raises BadSetting if the disk has less than `needed` bytes free."""
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise BadSetting(
                f"{self.out} needs about {needed / 1e9:.1f} GB, and its disk has "
                f"{free / 1e9:.1f} GB free; choose another folder"
            )

    def add(self, name: str, tensor: Tensor) -> None:
        """Adds a tensor, which is contiguous and shares its memory with no other one."""
        if self._pending and self._size + tensor.nbytes > self.limit:
            self.flush()
        self._pending[name] = tensor
        self.shapes[name], self.dtype = tuple(tensor.shape), tensor.dtype
        self._size, self.bytes = self._size + tensor.nbytes, self.bytes + tensor.nbytes

    def flush(self) -> None:
        """Writes the tensors that are not written yet, and frees them. Raises BadSetting."""
        if not self._pending:
            return
        path = self.folder / f"{self._count}{PARTIAL}"
        try:
            save_file(self._pending, path, metadata={"format": "pt"})
        except SafetensorError as error:
            raise BadSetting(f"{path} cannot be written: {error}") from error
        path.chmod(0o644)  # safetensors lets the owner alone read it
        self._files |= dict.fromkeys(self._pending, self._count)
        self._pending, self._size, self._count = {}, 0, self._count + 1

    def copy(self, source: Path) -> None:
        """Copies all files of a model's folder but weights, their indices and code."""
        for file in source.iterdir():
            is_index = file.name.endswith(".index.json")
            copied = file.name.endswith(COPIED) or file.match(VERSIONS)
            if file.is_file() and copied and not is_index:
                shutil.copyfile(file, self.folder / file.name)
        if (source / TEMPLATES).is_dir():
            shutil.copytree(source / TEMPLATES, self.folder / TEMPLATES)

    def write(self, name: str, content: object) -> None:
        """Writes a JSON file."""
        text = json.dumps(content, indent=2) + "\n"
        (self.folder / name).write_text(text, encoding="utf-8")

    def finish(self) -> None:
        """Writes the index, and moves all files to their place, config.json last."""
        self.flush()
        for index in range(self._count):
            (self.folder / f"{index}{PARTIAL}").rename(self.folder / self._name(index))
        names = {name: self._name(index) for name, index in sorted(self._files.items())}
        content = {"metadata": {"total_size": self.bytes}, "weight_map": names}
        self.write("model.safetensors.index.json", content)
        for file in sorted(self.folder.iterdir(), key=lambda file: file.name == CONFIG):
            os.replace(file, self.out / file.name)

    def _name(self, index: int) -> str:
        return f"model-{index + 1:05d}-of-{self._count:05d}.safetensors"
