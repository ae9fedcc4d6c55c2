"""SentencePiece's tokenizer.model, a protocol buffer, as tokenizer.json."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.faults import BadModel
from penstock.tokenizer.damage import shown
from penstock.tokenizer.description import AddedToken, Description, Json
from penstock.tokenizer.special import added_tokens, named_tokens, numbered

SPACE = "▁"
UNIGRAM, BPE = 1, 2  # model_type
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # type of a piece
UNLIKELY = 1e4  # how much less the score of a token is than that of any piece


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
    """Whether a space is put before a text, and before the text after an added token."""
    removes_spaces: bool
    first_only: bool = False
    """Whether that space is put at the beginning only."""


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
    """Converts tokenizer.model and the added tokens that files beside it list; `config` is
    tokenizer_config.json. Raises BadModel."""
    model = _configured(_with_added(read(path), path.parent, config), config)
    texts = [piece.text for piece in model.pieces]
    unknown = next((n for n, piece in enumerate(model.pieces) if piece.kind == UNKNOWN), 0)
    names = {
        f"{name}_token": text
        for name, text in (("bos", "<s>"), ("eos", "</s>"), ("unk", texts[unknown]))
        if text in texts
    }
    names = named_tokens(path.parent, config, names)
    added = _added(path, model, config, names)
    known = {token.text for token in added}
    names = {name: text for name, text in names.items() if text in known}
    begins = config.get("add_bos_token", True) and config.get("bos_token", "") is not None
    return Description(
        _unigram(model, unknown, added)
        if model.kind == UNIGRAM
        else _bpe(model, texts[unknown], added),
        added,
        _normalizer(model),
        _metaspace(model) if model.first_only else None,
        _decoder(model),
        names.get("bos_token") if begins else None,
        names.get("eos_token") if config.get("add_eos_token") else None,
        names,
    )


def _configured(model: Pieces, config: Mapping[str, Any]) -> Pieces:
    """The model with the space that tokenizer_config.json chooses: `add_prefix_space`, and
    `legacy`, which Llama's later files set to false. Without it, as transformers 4 did."""
    prefix = config.get("add_prefix_space")
    dummy = model.dummy_prefix if prefix is None else bool(prefix)
    return replace(model, dummy_prefix=dummy, first_only=config.get("legacy") is False)


def _with_added(model: Pieces, folder: Path, config: Mapping[str, Any]) -> Pieces:
    """The model in which added tokens take the places of the pieces whose ids they have, as the
    chat markers of InternLM2 do, for which its vocabulary has unused pieces."""
    found = numbered(folder, config)
    pieces = [
        replace(piece, text=found[n].text, kind=CONTROL)
        if n in found and found[n].text != piece.text
        else piece
        for n, piece in enumerate(model.pieces)
    ]
    return replace(model, pieces=pieces)


def _added(
    path: Path, model: Pieces, config: Mapping[str, Any], names: Mapping[str, str]
) -> list[AddedToken]:
    """Returns the pieces that are found before a text is split, and the tokens that files beside
    tokenizer.model add or flag, in the order of their ids."""
    tokens = {
        n: AddedToken(n, piece.text, piece.kind != USER_DEFINED)
        for n, piece in enumerate(model.pieces)
        if piece.kind in (UNKNOWN, CONTROL, USER_DEFINED)
    }
    ids = {piece.text: n for n, piece in enumerate(model.pieces)}
    tokens |= {token.id: token for token in added_tokens(path.parent, config, names, ids)}
    added = [tokens[number] for number in sorted(tokens)]
    beyond = [token for token in added if token.id >= len(model.pieces)]
    for number, token in enumerate(beyond, len(model.pieces)):
        if token.id != number:
            raise BadModel(
                f"{path}: the added token {token.text!r} has the id {token.id}; expected {number}, "
                "since ids continue those of the pieces without gaps"
            )
    return added


def _unigram(model: Pieces, unknown: int, added: Sequence[AddedToken]) -> Json:
    # An added token keeps its id only if the model has it too; this score makes no text of it.
    beyond = [token for token in added if token.id >= len(model.pieces)]
    least = min(piece.score for piece in model.pieces) - UNLIKELY
    vocab = [[piece.text, piece.score] for piece in model.pieces]
    vocab += [[token.text, least] for token in beyond]
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": vocab,
        "byte_fallback": model.byte_fallback,
    }


def _bpe(model: Pieces, unknown: str, added: Sequence[AddedToken]) -> Json:
    pieces = {piece.text: n for n, piece in enumerate(model.pieces)}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), None),
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {token.text: token.id for token in added} | pieces,
        "merges": _merges(model, pieces),
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
    if model.removes_spaces:  # no other white space
        for pattern, content in ((r"\A +", ""), (r" +\z", ""), (" {2,}", " ")):
            steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    if not model.first_only:
        if model.dummy_prefix:
            steps.append({"type": "Prepend", "prepend": SPACE})
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _metaspace(model: Pieces) -> Json:
    scheme = "first" if model.dummy_prefix else "never"
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}


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
