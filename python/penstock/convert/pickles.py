"""Pickles of PyTorch: pytorch_model.bin, or several files with an index.

A pickle can run code when it is loaded. Here alone one is read, and only if it holds nothing but
tensors by their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.faults import BadModel
from penstock.weights.files import DTYPES, listed

SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
FILES = re.compile(r"pytorch_model([-_]\d+-of-\d+)?\.bin")  # in penstock.hub, too
NESTED = ("model", "module", "state_dict")
"""Keys under which training scripts save a checkpoint, beside optimizers and counters."""
HEAD = "lm_head.weight"
ARCHIVE = b"PK\x03\x04"  # how files begin that can be mapped into memory; older ones cannot
LFS = b"version https://git-lfs"
GLOBAL = re.compile(r"GLOBAL (\S+)")
SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class Pickles:
    """The files of a checkpoint. index: which of them has which tensor; empty if there is one."""

    folder: Path
    files: Sequence[str]
    index: Mapping[str, str]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum((self.folder / name).stat().st_size for name in self.files)

    def load(self, name: str) -> dict[str, Tensor]:
        """Reads a file; tensors are read from it when they are used. Raises BadModel, also if the
        index says something else of it."""
        path = self.folder / name
        tensors = load(path)
        if not self.index:
            return tensors
        lacking = [key for key, file in self.index.items() if file == name and key not in tensors]
        if lacking:
            raise BadModel(f"{path} lacks tensor {lacking[0]}, which {INDEX} lists")
        for key in tensors:
            if self.index.get(key) != name:
                says = f"in {self.index[key]}" if key in self.index else "in no file"
                raise BadModel(f"{path} has tensor {key}, which is {says} by {INDEX}")
        return tensors


def find(folder: Path) -> Pickles | None:
    """Returns the files of a folder; None if there are none. Raises BadModel if they are not those
    that the index lists."""
    present = {file.name for file in folder.iterdir() if FILES.fullmatch(file.name)}
    if not (folder / INDEX).is_file():
        if len(present) > 1 or (present and SINGLE not in present):
            raise BadModel(
                f"{folder} has {', '.join(sorted(present)[:3])}, but neither {INDEX} nor a single "
                f"{SINGLE}; download the model again"
            )
        return Pickles(folder, [SINGLE], {}) if present else None
    index = listed(folder / INDEX)
    files = sorted(set(index.values()))
    if not files:
        raise BadModel(f"{folder / INDEX} lists no tensors; download it again")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise BadModel(
            f"{folder / missing[0]} is missing, which {INDEX} lists; download the model again"
        )
    extra = sorted(present - set(files))
    if extra:
        raise BadModel(
            f"{folder / extra[0]} is not listed in {INDEX}: the folder has files of two "
            "checkpoints; delete those of one"
        )
    return Pickles(folder, files, index)


def load(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a pickle by their names. Raises BadModel for a damaged one, and for one
    that holds anything else or needs code."""
    try:
        with path.open("rb") as file:
            head = file.read(len(LFS))
        if head == LFS:
            raise BadModel(f"{path} is a pointer of Git LFS, not the file; run `git lfs pull`")
        mapped = head.startswith(ARCHIVE)
        loaded = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except BadModel:
        raise
    except Exception as error:  # the parser of pickles raises many kinds
        raise BadModel(_reason(path, error)) from error
    if not isinstance(loaded, dict) or not loaded:
        raise BadModel(f"{path} holds {_shown(loaded)}, not tensors by their names")
    for key in NESTED:
        if isinstance(loaded.get(key), dict):
            raise BadModel(
                f"{path}: {key!r} holds {_shown(loaded[key])}, but the tensors must be at the top. "
                f"Save them so: torch.save(checkpoint[{key!r}], ...)"
            )
    for name, value in loaded.items():
        _check(path, name, value)
    return loaded


def tables(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of buffers that older versions of transformers saved: masks of attention and
    frequencies of RoPE. Models compute them from config.json."""
    return [name for name, tensor in tensors.items() if _is_table(name.split(".")[-1], tensor)]


def tied_to(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the tensor whose memory is the head's; None if no other is."""
    head = tensors.get(HEAD)
    if head is None:
        return None
    return next((n for n, t in tensors.items() if n != HEAD and _place(t) == _place(head)), None)


def apart(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yields all tensors, contiguous and without memory that they share. Copied are those that are
    not so: safetensors stores no views."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        own = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
        if not own or storage.data_ptr() in seen:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        seen.add(storage.data_ptr())
        yield name, tensor.detach()


def _reason(path: Path, error: Exception) -> str:
    """Why a file cannot be read. PyTorch's own text advises to let the pickle run code."""
    text = str(error)
    code = GLOBAL.search(text)
    if code:
        return (
            f"{path} cannot be read: it needs {code[1]}, and a checkpoint holds tensors alone. Its "
            "code is never run"
        )
    found = text.rpartition("WeightsUnpickler error:")[2].strip().splitlines()
    why = found[0] if found else type(error).__name__
    return f"{path} cannot be read: it is damaged, or no pickle ({why}); download it again"


def _check(path: Path, name: object, value: Any) -> None:
    """Raises BadModel unless it is a tensor that the server can read."""
    if not isinstance(name, str) or not isinstance(value, Tensor):
        raise BadModel(f"{path}: {name!r} is {_shown(value)}, and a checkpoint holds tensors alone")
    plain = value.layout == torch.strided and value.device.type == "cpu"
    if not plain or value.dtype not in DTYPES.values():
        kind = f"{str(value.layout).removeprefix('torch.')} tensor"
        found = f"a {kind} of {str(value.dtype).removeprefix('torch.')} on {value.device}"
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES.values())
        raise BadModel(f"{path}: {name!r} is {found}; only plain tensors can be read, of {known}")


def _shown(value: object) -> str:
    """What a value is, for messages."""
    kind = type(value).__name__
    if isinstance(value, (dict, list, tuple)):
        return f"a {kind} of {len(value)} entries"
    text = repr(value)
    return f"{text[:SHOWN] + '...' if len(text) > SHOWN else text} ({kind})"


def _is_table(last: str, tensor: Tensor) -> bool:
    is_mask = (
        tensor.dim() == 4 and tensor.shape[:2] == (1, 1) and tensor.shape[2] == tensor.shape[3]
    )
    return (
        (last in ("bias", "causal_mask") and is_mask)
        or (last == "masked_bias" and tensor.numel() == 1)
        or (last == "inv_freq" and tensor.dim() == 1)
    )


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Equal of tensors that are the same memory in the same order."""
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
