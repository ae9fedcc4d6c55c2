"""Conversion of a model folder's tokenizer to tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from penstock.faults import BadModel
from penstock.tokenizer import byte_pairs, pieces
from penstock.tokenizer.description import Description

SOURCES = ("tekken.json", "*.tiktoken", "tokenizer.model", "tokenizer.model.v*")
"""The files that are converted, the preferred first."""
VERSION = "1"  # of the conversion; a change of it makes the cache convert again


def convert(folder: Path, out: Path) -> Path | None:
    """Writes tokenizer.json, and tokenizer_config.json if `out` has none, for the tokenizer of
    `folder`. Returns its file; None if there is none. Raises BadModel for an unsupported one."""
    source = find(folder)
    if source is None:
        return None
    description = _describe(source, _config(folder))
    _write(out / "tokenizer.json", description.json())
    if not (out / "tokenizer_config.json").exists():
        _write(out / "tokenizer_config.json", dict(description.names))
    return source


def with_tokenizer(folder: Path, cache: Path) -> tuple[Path, Path] | None:
    """Returns a folder in `cache` that has the files of `folder`, as links, and tokenizer.json, and
    the file that was converted. None if there is none. Raises BadModel."""
    source = find(folder)
    if source is None:
        return None
    digest = hashlib.sha256(f"{VERSION} {folder.resolve()}\n".encode())
    for file in sorted(folder.iterdir()):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
    digest.update(source.read_bytes())
    place = cache / digest.hexdigest()[:24]
    if not (place / "tokenizer.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=cache))
        try:
            _fill(folder, beside)
            os.chmod(beside, 0o755)
            if not place.exists():
                os.rename(beside, place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return place, source


def find(folder: Path) -> Path | None:
    """Returns the file of a folder's tokenizer."""
    return next((file for name in SOURCES for file in sorted(folder.glob(name))), None)


def _fill(folder: Path, place: Path) -> None:
    for file in folder.iterdir():
        (place / file.name).symlink_to(file.resolve())
    convert(folder, place)


def _describe(source: Path, config: dict[str, Any]) -> Description:
    if source.name == "tekken.json":
        return byte_pairs.tekken(source)
    if source.suffix == ".tiktoken":
        return byte_pairs.qwen(source)
    # Llama 3 has lines of base64 under the name of SentencePiece's binary file.
    with source.open("rb") as file:
        head = file.read(4)
    return byte_pairs.llama(source) if head[:1].isalnum() else pieces.describe(source, config)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadModel(f"{path} is damaged: {error}") from error
    return found


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
