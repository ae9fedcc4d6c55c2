"""SentencePiece's tokenizer.model, a protocol buffer, as tokenizer.json."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.faults import BadModel
from penstock.tokenizer.damage import shown
from penstock.tokenizer.description import AddedToken, Description, Json

SPACE = "▁"
UNIGRAM, BPE = 1, 2  # model_type
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # type of a piece


@dataclass(frozen=True)
class Piece:
    """A token: its text, score and type."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Pieces:
    """The parts of tokenizer.model that decide how it tokenizes."""

    pieces: list[Piece]
    kind: int
    byte_fallback: bool
    charsmap: bytes
    dummy_prefix: bool
    removes_spaces: bool


def read(path: Path) -> Pieces:
    """Reads tokenizer.model. Raises BadModel if it is damaged or of an unsupported kind."""
    content = path.read_bytes()
    try:
        found = list(_fields(content))
        pieces = [_piece(value) for number, value in found if number == 1]
        trainer = _last(found, 2)
        normalizer = _last(found, 3)
        kind = trainer.get(3, UNIGRAM)
        result = Pieces(
            pieces,
            int(kind),
            bool(trainer.get(35, 0)),
            _bytes(normalizer.get(2, b"")),
            bool(normalizer.get(3, 1)),
            bool(normalizer.get(4, 1)),
        )
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise BadModel(f"{path} is not a SentencePiece model; found {shown(content)}") from error
    if not pieces:
        raise BadModel(
            f"{path} is not a SentencePiece model: it has no pieces; found {shown(content)}"
        )
    if result.kind not in (UNIGRAM, BPE):
        raise BadModel(f"{path}: model_type {kind} is not supported; 1 (unigram) and 2 (BPE) are")
    return result


def describe(path: Path, config: Mapping[str, Any]) -> Description:
    """Converts tokenizer.model; `config` is tokenizer_config.json. Raises BadModel."""
    model = read(path)
    texts = [piece.text for piece in model.pieces]
    added = [
        AddedToken(n, piece.text, piece.kind != USER_DEFINED)
        for n, piece in enumerate(model.pieces)
        if piece.kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    unknown = next((n for n, piece in enumerate(model.pieces) if piece.kind == UNKNOWN), 0)
    names = {
        f"{name}_token": text
        for name, text in (("bos", "<s>"), ("eos", "</s>"), ("unk", texts[unknown]))
        if text in texts
    }
    begin = config.get("bos_token", names.get("bos_token"))
    begin = begin.get("content") if isinstance(begin, dict) else begin
    begins = config.get("add_bos_token", True) and begin in {token.text for token in added}
    return Description(
        _unigram(model, unknown) if model.kind == UNIGRAM else _bpe(model, texts[unknown]),
        added,
        _normalizer(model),
        _metaspace(model) if model.kind == UNIGRAM else None,
        _metaspace(model) if model.kind == UNIGRAM else _decoder(model),
        begin if begins else None,
        names=names,
    )


def _unigram(model: Pieces, unknown: int) -> Json:
    vocab = [[piece.text, piece.score] for piece in model.pieces]
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": vocab,
        "byte_fallback": model.byte_fallback,
    }


def _bpe(model: Pieces, unknown: str) -> Json:
    vocab = {piece.text: n for n, piece in enumerate(model.pieces)}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), None),
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": _merges(model, vocab),
    }


def _merges(model: Pieces, vocab: Mapping[str, int]) -> list[list[str]]:
    """Returns every pair of pieces that make another one, the highest score first."""
    merges = []
    for piece in model.pieces:
        if piece.kind in (UNKNOWN, CONTROL, BYTE):
            continue
        cuts = ((piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text)))
        pairs = [pair for pair in cuts if pair[0] in vocab and pair[1] in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(-piece.score, [left, right]) for left, right in pairs]
    return [pair for _, pair in sorted(merges, key=lambda merge: merge[0])]


def _normalizer(model: Pieces) -> Json | None:
    steps: list[Json] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.removes_spaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.kind == BPE:
        if model.dummy_prefix:
            steps.append({"type": "Prepend", "prepend": SPACE})
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _metaspace(model: Pieces) -> Json:
    scheme = "always" if model.dummy_prefix else "never"
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}


def _decoder(model: Pieces) -> Json:
    steps: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


Value = int | bytes


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yields number and value of each field of a protocol buffer."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError(f"it is no protocol buffer at byte {at}")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _last(fields: list[tuple[int, Value]], number: int) -> dict[int, Any]:
    found = [value for key, value in fields if key == number and isinstance(value, bytes)]
    return dict(_fields(found[-1])) if found else {}


def _piece(value: Value) -> Piece:
    fields: dict[int, Any] = dict(_fields(_bytes(value)))
    (score,) = struct.unpack("<f", fields.get(2, b"\0\0\0\0"))
    return Piece(_bytes(fields.get(1, 0)).decode(), score, int(fields.get(3, 1)))


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"a field must have bytes, found {value}")
    return value
