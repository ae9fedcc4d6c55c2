"""A tokenizer's tokens as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from penstock import _core
from penstock.faults import Fault


class NoTokenizer(Fault):
    """There is no tokenizer whose tokens could be told apart."""


class Vocabulary:
    """What grammars know of a model's tokens. Reading it takes about a second per 128,000 tokens,
    in which other threads go on. Raises NoTokenizer."""

    def __init__(self, tokenizer: Path, size: int) -> None:
        self.size = size  # rows of the model's vocabulary
        try:
            self.own = _core.Vocabulary(str(tokenizer), size)
        except ValueError as error:
            raise NoTokenizer(
                f"grammars need the model's tokenizer, and {tokenizer.name} cannot be used: {error}"
            ) from error

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes of each token; empty for those that stand for no text (special, unused)."""
        return tuple(self.own.texts())

    @cached_property
    def special_tokens(self) -> dict[bytes, int]:
        """The special tokens, by what they are called."""
        return dict(self.own.special_tokens())

    @cached_property
    def texts(self) -> frozenset[bytes]:
        """Every text that is a token."""
        return frozenset(text for text in self.tokens if text)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.texts), default=0)

    @cached_property
    def single(self) -> tuple[bytes, ...]:
        """Bytes that are tokens by themselves: with them any text can be spelt."""
        return tuple(sorted(text for text in self.texts if len(text) == 1))

    def shortest_tokenization(self, text: bytes) -> list[int] | None:
        """The fewest tokens that spell a text; None if none do."""
        return self.own.shortest_tokenization(text)

    def max_suffix_tokens(self, text: bytes) -> int:
        """The most tokens that an ending of a text needs, at the fewest."""
        return self.own.max_suffix_tokens(text)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The bytes of tokens, one after the other."""
        return b"".join(self.tokens[token] for token in tokens)
