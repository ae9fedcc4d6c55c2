"""A tokenizer's tokens as bytes, and how they walk through an automaton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.faults import Fault

Ints = npt.NDArray[np.int32]


class NoTokenizer(Fault):
    """There is no tokenizer whose tokens could be told apart."""


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each token; empty for those that stand for no text (special, unused)."""

    tokens: tuple[bytes, ...]
    marks: Mapping[bytes, int] = field(default_factory=dict)
    """The special tokens, by what they are called."""

    @property
    def size(self) -> int:
        """Rows of the model's vocabulary."""
        return len(self.tokens)

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

    @cached_property
    def _columns(self) -> tuple[Ints, list[npt.NDArray[np.uint8]]]:
        """Tokens in order of falling length, and for each k the k-th bytes of those that have
        one, which are a beginning of that order."""
        texts = self.tokens
        ids = sorted((i for i, t in enumerate(texts) if t), key=lambda i: -len(texts[i]))
        columns = []
        for k in range(self.longest):
            column = bytes(texts[i][k] for i in ids if len(texts[i]) > k)
            columns.append(np.frombuffer(column, np.uint8))
        return np.array(ids, np.int32), columns

    @cached_property
    def _begun(self) -> list[Ints]:
        """For each byte, the places in that order of the tokens that begin with it."""
        _, columns = self._columns
        firsts = columns[0] if columns else np.zeros(0, np.uint8)
        by_byte = np.argsort(firsts, kind="stable").astype(np.int32)
        return np.split(by_byte, np.cumsum(np.bincount(firsts, minlength=256))[:-1])

    def walk(self, table: npt.NDArray[np.int16], state: int) -> tuple[Ints, npt.NDArray[np.int16]]:
        """All tokens that can follow in `state`, with the state that each leads to.

        `table` [states, 256] holds the state after a byte, -1 where there is none.
        """
        ids, columns = self._columns
        found, states = [], []
        firsts = np.flatnonzero(table[state] >= 0).tolist()
        places = np.sort(np.concatenate([self._begun[b] for b in firsts] or [ids[:0]]))
        now = np.full(len(places), state, np.int16)
        for k, column in enumerate(columns):
            now = table[now, column[places]]
            alive = now >= 0
            places, now = places[alive], now[alive]
            longer = len(columns[k + 1]) if k + 1 < len(columns) else 0
            split = int(np.searchsorted(places, longer))
            found.append(ids[places[split:]])
            states.append(now[split:])
            places, now = places[:split], now[:split]
            if not split:
                break
        if not found:
            return np.zeros(0, np.int32), np.zeros(0, np.int16)
        return np.concatenate(found), np.concatenate(states)


def load_tokenizer(path: Path, vocab: int) -> Any:
    """llguidance's tokenizer. Holds the interpreter for about a second per 128,000 tokens."""
    from llguidance import LLTokenizer

    try:
        return LLTokenizer(path.read_text(encoding="utf-8"), n_vocab=vocab)
    except (OSError, ValueError) as error:
        raise NoTokenizer(
            f"grammars need the model's tokenizer, and {path.name} cannot be used: {error}"
        ) from error


def read_vocabulary(tokenizer: Any, vocab: int) -> Vocabulary:
    """The tokens of `load_tokenizer`'s result; rows beyond them are empty."""

    texts: list[bytes] = [tokenizer.decode_bytes([token]) for token in range(vocab)]
    special = [token for token in range(vocab) if tokenizer.is_special_token(token)]
    marks = {texts[token]: token for token in special if texts[token]}
    for token in special:
        texts[token] = b""
    return Vocabulary(tuple(texts), marks)
