"""A tokenizer as the parts of tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in the text before it is split. special: left out of decoded text."""

    id: int
    text: str
    special: bool

    def json(self) -> Json:
        """Returns its entry in tokenizer.json."""
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {"id": self.id, "content": self.text, **flags, "special": self.special}


@dataclass(frozen=True)
class Description:
    """A tokenizer. `begin` is the token before each text, None for none; `names` are entries of
    tokenizer_config.json, such as bos_token."""

    model: Json
    added: Sequence[AddedToken]
    normalizer: Json | None
    pre_tokenizer: Json | None
    decoder: Json
    begin: str | None = None
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
            "post_processor": self._begin(),
            "decoder": self.decoder,
            "model": self.model,
        }

    def _begin(self) -> Json | None:
        if self.begin is None:
            return None
        text = self.begin
        number = next(token.id for token in self.added if token.text == text)
        first = {"SpecialToken": {"id": text, "type_id": 0}}
        parts = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
        return {
            "type": "TemplateProcessing",
            "single": [first, parts[0]],
            "pair": [first, parts[0], parts[1]],
            "special_tokens": {text: {"id": text, "ids": [number], "tokens": [text]}},
        }
