"""A tokenizer's vocabulary as bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from penstock import _core
from penstock.faults import Fault


class NoTokenizer(Fault):
    """The model has no usable tokenizer."""


class Vocabulary:
    """A model's vocabulary, for grammars.

    Loading takes about a second per 128,000 tokens, with the GIL released. Raises NoTokenizer.
    """

    def __init__(self, tokenizer: Path, size: int) -> None:
        self.size = size  # size of the model's vocabulary
        try:
            self.own = _core.Vocabulary(str(tokenizer), size)
        except ValueError as error:
            raise NoTokenizer(
                f"grammars need the model's tokenizer, and {tokenizer.name} cannot be used: {error}"
            ) from error

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes of each token; empty for tokens without text (special, unused)."""
        return tuple(self.own.texts())

    @cached_property
    def special_tokens(self) -> dict[bytes, int]:
        """The special tokens by name."""
        return dict(self.own.special_tokens())

    @cached_property
    def texts(self) -> frozenset[bytes]:
        """The texts of all tokens."""
        return frozenset(text for text in self.tokens if text)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.texts), default=0)

    @cached_property
    def single(self) -> tuple[bytes, ...]:
        """Bytes that are tokens by themselves; they can spell any text made of them."""
        return tuple(sorted(text for text in self.texts if len(text) == 1))

    def tokenization(self, text: bytes) -> list[int] | None:
        """Returns the fewest tokens that spell a text with names of special tokens; None if none
        do."""
        names = sorted((name for name in self.special_tokens if name in text), key=len)
        parts = re.split(b"(" + b"|".join(map(re.escape, reversed(names))) + b")", text)
        tokens: list[int] = []
        for part in filter(None, parts if names else [text]):
            special = self.special_tokens.get(part)
            found = self.shortest_tokenization(part) if special is None else [special]
            if found is None:
                return None
            tokens += found
        return tokens

    def shortest_tokenization(self, text: bytes) -> list[int] | None:
        """Returns the fewest tokens that spell a text; None if none do."""
        return self.own.shortest_tokenization(text)

    def max_suffix_tokens(self, text: bytes) -> int:
        """Returns the maximum, over all suffixes of a text, of the fewest tokens that spell the
        suffix."""
        return self.own.max_suffix_tokens(text)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Returns the concatenated bytes of tokens."""
        return b"".join(self.tokens[token] for token in tokens)
