"""A tokenizer as the parts of tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
"""How an added token is found in a text: alone, with the spaces around it, after normalization."""


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in the text before it is split. special: left out of decoded text;
    flags: those of FLAGS that it has."""

    id: int
    text: str
    special: bool
    flags: frozenset[str] = frozenset()

    def json(self) -> Json:
        """Returns its entry in tokenizer.json."""
        flags = {flag: flag in self.flags for flag in FLAGS}
        return {"id": self.id, "content": self.text, **flags, "special": self.special}


@dataclass(frozen=True)
class Description:
    """A tokenizer. `begin` is the token before each text and `end` the one after it, None for none;
    `names` are entries of tokenizer_config.json, such as bos_token."""

    model: Json
    added: Sequence[AddedToken]
    normalizer: Json | None
    pre_tokenizer: Json | None
    decoder: Json
    begin: str | None = None
    end: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Json:
        """Returns tokenizer.json."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [token.json() for token in self.added],
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": self._template(),
            "decoder": self.decoder,
            "model": self.model,
        }

    def _template(self) -> Json | None:
        around = [text for text in (self.begin, self.end) if text is not None]
        if not around:
            return None
        ids = {token.text: token.id for token in self.added}
        first, second = (
            [
                *([{"SpecialToken": {"id": self.begin, "type_id": kind}}] if self.begin else []),
                {"Sequence": {"id": name, "type_id": kind}},
                *([{"SpecialToken": {"id": self.end, "type_id": kind}}] if self.end else []),
            ]
            for kind, name in enumerate("AB")
        )
        return {
            "type": "TemplateProcessing",
            "single": first,
            "pair": [*first, *second],
            "special_tokens": {
                text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in around
            },
        }
