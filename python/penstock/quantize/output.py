"""The folder that is written: shard by shard, so that a stopped run can go on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.faults import BadSetting
from penstock.quantize.options import Job

PARTIAL = ".partial"
SETTINGS = "settings.json"
LOCK = "lock"  # locked by the run that writes; holds its process id
NOTES = ".notes.json"  # of a shard, beside it: safetensors keeps metadata in no order
COPIED = (".json", ".jinja", "tokenizer.model", "tiktoken.model", ".tiktoken", "merges.txt")
"""Ends of the names of files that are copied, besides config.json and weights."""


class Output:
    """The files of a run. They lie in OUT/.partial until all are there. Use as a context manager,
    which keeps other runs from writing them."""

    def __init__(self, job: Job, texts: list[list[int]], shards: int) -> None:
        self.job, self.shards = job, shards
        self.folder = job.out / PARTIAL
        self.settings = _settings(job, texts)

    def __enter__(self) -> Output:
        """Begins, or goes on. Raises BadSetting if the folder holds something else, or if another
        run is writing to it."""
        out, begun = self.job.out, (self.folder / SETTINGS).is_file()
        if not begun and out.exists() and (not out.is_dir() or _others(out)):
            raise BadSetting(f"{out} exists already; choose another folder, or delete it")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = (self.folder / LOCK).open("a+", encoding="utf-8")
        try:
            self._take_lock()
            if (self.folder / SETTINGS).is_file():
                self._check()
            else:
                _write(self.folder / SETTINGS, json.dumps(self.settings, indent=2) + "\n")
        except BaseException:
            self.lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.close()

    def _take_lock(self) -> None:
        """The system releases it when the process ends, however that happens."""
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.lock.seek(0)
            raise BadSetting(
                f"another run is writing to {self.job.out} (process {self.lock.read()}); wait for "
                "its end, or choose another folder"
            ) from None
        except OSError:  # some network file systems have no locks
            return
        self.lock.truncate(0)
        self.lock.write(str(os.getpid()))
        self.lock.flush()

    def _check(self) -> None:
        found = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
        for name, value in self.settings.items():
            if found.get(name) != value:
                raise BadSetting(
                    f"{self.job.out} holds an unfinished run with other settings: {name} is "
                    f"{found.get(name)!r} there and {value!r} here; choose another folder, or "
                    "delete it"
                )

    def check_space(self, needed: int) -> None:
        """Raises BadSetting if `needed` bytes, less those that are there, do not fit."""
        written = sum(file.stat().st_size for file in self.folder.iterdir())
        free, needed = shutil.disk_usage(self.folder).free, needed - written
        if free < needed:
            raise BadSetting(
                f"{self.job.out} needs about {needed / 1e9:.1f} GB, and its disk has "
                f"{free / 1e9:.1f} GB free; choose another folder"
            )

    def read(self, index: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors of a shard and what was noted of it; None if it is not written."""
        path = self._shard(index)
        if not path.is_file():
            return None
        notes: dict[str, Any] = json.loads(self._notes(index).read_text(encoding="utf-8"))
        return load_file(path), notes

    def write(self, index: int, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Writes a shard, whole or not at all."""
        path = self._shard(index)
        beside = path.with_suffix(".new")
        _write(self._notes(index), json.dumps(notes))
        save_file(dict(tensors), beside, metadata={"format": "pt"})
        shutil.copymode(self._notes(index), beside)  # safetensors lets the owner alone read it
        os.replace(beside, path)

    def finish(self, raw: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Writes the index, config.json `raw` and the report, copies the tokenizer's files, and
        moves all to its place, config.json last."""
        names: dict[str, str] = {}
        size = 0
        for index in range(self.shards):
            path = self._shard(index)
            with safe_open(path, framework="pt") as file:
                names |= dict.fromkeys(file.keys(), path.name)
            size += path.stat().st_size
        index_file = {"metadata": {"total_size": size}, "weight_map": dict(sorted(names.items()))}
        for file in sorted(self.job.model.iterdir()):
            copied = file.name.endswith(COPIED) and not file.name.endswith(".index.json")
            if file.is_file() and copied:
                shutil.copyfile(file, self.folder / file.name)
        for name, content in (
            ("model.safetensors.index.json", index_file),
            ("quantize.json", report),
            ("config.json", raw),
        ):
            _write(self.folder / name, json.dumps(content, indent=2) + "\n")
        # A run that is stopped here finds its shards wherever they are: see `_shard`.
        for file in sorted(self.folder.iterdir(), key=lambda file: file.name == "config.json"):
            if file.name not in (SETTINGS, LOCK) and not file.name.endswith(NOTES):
                os.replace(file, self.job.out / file.name)
        shutil.rmtree(self.folder)

    def _notes(self, index: int) -> Path:
        return self.folder / f"{index + 1:05d}{NOTES}"

    def _shard(self, index: int) -> Path:
        name = f"model-{index + 1:05d}-of-{self.shards:05d}.safetensors"
        moved = self.job.out / name
        return moved if moved.is_file() else self.folder / name


def _settings(job: Job, texts: list[list[int]]) -> dict[str, Any]:
    """What a run depends on."""
    weights = sorted(job.model.glob("*.safetensors"))
    return {
        "model": [[file.name, file.stat().st_size] for file in weights],
        "config": _hash((job.model / "config.json").read_bytes()),
        "texts": _hash(json.dumps(texts).encode()),
        "device": job.device,
        **job.options.stored(),
    }


def _others(out: Path) -> bool:
    """Whether a folder has more than the beginning of a run."""
    return any(file.name != PARTIAL for file in out.iterdir())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
