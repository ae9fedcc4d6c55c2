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
from penstock.tokenizer import byte_pairs, pieces, special, vocab_merges
from penstock.tokenizer.damage import LFS
from penstock.tokenizer.description import Description

TIKTOKEN = {
    "qwen.tiktoken": "QWenTokenizer",
    "hy.tiktoken": "HYTokenizer",
    "tiktoken.model": "TikTokenTokenizer",
}
"""The files of tiktoken that are converted, and their classes. The file lists no special tokens and
no pattern: the class has them."""
VOCAB = "vocab.json"
SOURCES = (
    *("tekken.json", "*.tiktoken", "tiktoken.model", "tokenizer.model", "tokenizer.model.v*"),
    VOCAB,
)
"""The files that are converted, the preferred first. Beside vocab.json lies merges.txt."""
READ = (special.CONFIG, special.ADDED, special.NAMED, vocab_merges.MERGES)
"""The files beside them that decide the result."""
VERSION = "3"  # of the conversion; a change of it makes the cache convert again


def convert(folder: Path, out: Path) -> Path | None:
    """Writes tokenizer.json, and tokenizer_config.json if `out` has none, for the tokenizer of
    `folder`. Returns its file; None if there is none. Raises BadModel for an unsupported one."""
    source = find(folder)
    if source is None:
        return None
    description = _describe(source, special.read_json(folder / special.CONFIG))
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
    for file in (source, *(folder / name for name in READ)):
        if file.is_file():
            digest.update(f"{file.name}\n".encode() + file.read_bytes())
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
    files = (file for name in SOURCES for file in sorted(folder.glob(name)))
    merges = (folder / vocab_merges.MERGES).is_file()
    return next((file for file in files if file.name != VOCAB or merges), None)


def _fill(folder: Path, place: Path) -> None:
    for file in folder.iterdir():
        (place / file.name).symlink_to(file.resolve())
    convert(folder, place)


def _describe(source: Path, config: dict[str, Any]) -> Description:
    if source.name == "tekken.json":
        return byte_pairs.tekken(source)
    if source.name == VOCAB:
        return vocab_merges.describe(source, config)
    if source.suffix == ".tiktoken" or source.name in TIKTOKEN:
        return _tiktoken(source, config)
    # Llama 3 has lines of base64 under the name of SentencePiece's binary file.
    with source.open("rb") as file:
        head = file.read(len(LFS))
    if head == LFS or not head[:1].isalnum():
        return pieces.describe(source, config)
    try:
        return byte_pairs.llama(source)
    except BadModel as error:
        raise BadModel(
            f"{error}. {source.name} must be SentencePiece's binary model, or Llama 3's tiktoken "
            "vocabulary"
        ) from error


def _tiktoken(source: Path, config: dict[str, Any]) -> Description:
    expected, found = TIKTOKEN.get(source.name), special.tokenizer_class(config)
    if found is None and source.suffix == ".tiktoken":
        found = expected  # these names belong to one class each
    if expected is None or found != expected:
        known = ", ".join(f"{name} of {cls}" for name, cls in TIKTOKEN.items())
        raise BadModel(
            f"{source} of the tokenizer_class {found!r} is not supported, because the file has "
            f"neither its special tokens nor its pattern; supported: {known}. The model needs a "
            "tokenizer.json"
        )
    match source.name:
        case "qwen.tiktoken":
            return byte_pairs.qwen(source)
        case "hy.tiktoken":
            return byte_pairs.hunyuan(source)
        case _:
            return byte_pairs.kimi(source, config)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
