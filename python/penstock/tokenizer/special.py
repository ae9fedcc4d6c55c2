"""The special and added tokens that a model folder lists beside its vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.faults import BadModel
from penstock.tokenizer.description import FLAGS, AddedToken

CONFIG = "tokenizer_config.json"
ADDED = "added_tokens.json"
NAMED = "special_tokens_map.json"
MODEL = "config.json"
NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
LISTS = ("additional_special_tokens", "extra_special_tokens")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object, {} if there is no such file. Raises BadModel for anything else."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadModel(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise BadModel(f"{path} must be a JSON object, found {found!r:.80}")
    return found


def tokenizer_class(config: Mapping[str, Any]) -> str | None:
    """Returns the class that tokenizer_config.json names, or that its custom code has."""
    named = config.get("tokenizer_class") or custom_code(config).rpartition(".")[2]
    return str(named) if named else None


def custom_code(config: Mapping[str, Any]) -> str:
    """Returns `module.Class` of a tokenizer in custom code, "" if it has none."""
    entry = (config.get("auto_map") or {}).get("AutoTokenizer")
    first = entry[0] if isinstance(entry, list) and entry else entry
    return str(first or "").rpartition("--")[2]


def text_of(token: object) -> str | None:
    """Returns the text of a token, which files store as text or as an object with `content`."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None


def is_id(value: object) -> bool:
    """Returns whether a value of JSON may be a token's id."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def numbered(folder: Path, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Returns the tokens to which a file of the folder gives ids: those of added_tokens_decoder, or
    of added_tokens.json where there are none. Raises BadModel."""
    tokens = listed(config, folder / CONFIG)
    if not tokens:
        path = folder / ADDED
        for text, number in read_json(path).items():
            if not is_id(number):
                raise BadModel(f"{path}: {text!r} must have an id, found {number!r:.80}")
            tokens[number] = AddedToken(number, text, special=False)
    return tokens


def listed(config: Mapping[str, Any], path: Path) -> dict[int, AddedToken]:
    """Returns the tokens of added_tokens_decoder by their ids. path: the file, for errors."""
    tokens = {}
    for key, entry in (config.get("added_tokens_decoder") or {}).items():
        text = text_of(entry)
        if not str(key).isdecimal() or text is None or not isinstance(entry, Mapping):
            raise BadModel(
                f"{path}: added_tokens_decoder must give an id an object with content, "
                f"found {key!r}: {entry!r:.80}"
            )
        tokens[int(key)] = AddedToken(int(key), text, bool(entry.get("special")), _flags(entry))
    return tokens


def added_tokens(
    folder: Path, config: Mapping[str, Any], names: Mapping[str, str], vocab: Mapping[str, int]
) -> list[AddedToken]:
    """Returns the added tokens of a folder in the order of their ids.

    names: the special tokens by name, such as bos_token. A special token that neither `vocab` nor
    a file gives an id is left out. Raises BadModel for an id that another token has.
    """
    tokens = numbered(folder, config)
    ids = dict(vocab) | {token.text: number for number, token in tokens.items()}
    for text, entry in _special(folder, config, names):
        if text in ids:
            number = ids[text]
            # A name alone keeps the flags that another file gave the token.
            known = tokens[number].flags if number in tokens else frozenset()
            flags = known if entry is None else _flags(entry)
            tokens[number] = AddedToken(number, text, True, flags)
    texts = {number: text for text, number in vocab.items()}
    for number, token in tokens.items():
        if texts.get(number, token.text) != token.text:
            raise BadModel(
                f"{folder}: the added token {token.text!r} has the id {number}, which "
                f"{texts[number]!r} has in the vocabulary"
            )
    return [tokens[number] for number in sorted(tokens)]


def named_tokens(
    folder: Path, config: Mapping[str, Any], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Returns bos_token, eos_token, ... as the files name them, else as `defaults` does."""
    found = dict(defaults)
    for source in (read_json(folder / NAMED), config):
        for name in NAMES:
            text = text_of(source.get(name))
            if text is not None:
                found[name] = text
    return found


def _special(
    folder: Path, config: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yields each special token and the object that stores it, None if it is text."""
    yield from ((text, None) for text in names.values())
    for source in (read_json(folder / NAMED), config):
        lists = [source.get(name) for name in LISTS]
        entries = [source.get(name) for name in NAMES]
        entries += [entry for found in lists if isinstance(found, list) for entry in found]
        for entry in entries:
            text = text_of(entry)
            if text is not None:
                yield text, entry if isinstance(entry, Mapping) else None


def _flags(entry: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(flag for flag in FLAGS if entry.get(flag))
