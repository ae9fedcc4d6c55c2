"""The small protocol that all backends speak."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.faults import Fault

Ints = npt.NDArray[np.int32]


class GrammarRejected(Fault):
    """A grammar that cannot be: the request's own fault. Says which rule and which value."""


class CompileLimitExceeded(GrammarRejected):
    """A grammar that took too much time or memory to compile. On another machine, or on another
    day, it might not: the ranks of a group may disagree about it."""


class CompileQueueFull(CompileLimitExceeded):
    """A grammar that takes long to compile, while too many others do."""


class CompilerUnavailable(Fault):
    """A grammar could not be compiled for a reason that is not the request's."""


class GrammarKind(enum.Enum):
    """What a grammar's text is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"  # Lark, or EBNF with `root ::=`
    CALLS = "calls"  # JSON: see `calls`


@dataclass(frozen=True)
class Reasoning:
    """What a model says to itself before it answers."""

    open: bytes
    close: bytes
    started: bool  # the prompt ends inside


@dataclass(frozen=True)
class GrammarSpec:
    """A grammar as a request brings it: all that its masks depend on."""

    kind: GrammarKind
    text: str
    complete: bool  # steer to a whole text before the tokens run out
    reasoning: Reasoning | None = None  # what may come before the text


@dataclass(frozen=True)
class EndConditions:
    """How one sequence may end: what is added to a grammar for each request."""

    tokens: tuple[int, ...]  # end tokens, allowed where the text is whole
    most: int  # tokens that the sequence may have generated in all


class Matcher(Protocol):
    """Where one sequence is in its grammar: a function of the tokens that it emitted."""

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    @property
    def ended(self) -> bool:
        """Whether nothing of the text can follow: it is over, or a token came that no mask
        allowed."""

    @property
    def unconstrained(self) -> bool:
        """Whether every token may follow: there is no mask to fill then."""

    def advance(self, token: int) -> None:
        """Takes one emitted token. One that no mask allowed ends the grammar."""

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token, bit i of word i // 32 for token i, into `row`
        [words]. Returns whether the tokens left forbid what the grammar alone would allow. Raises
        GrammarRejected where the grammar becomes too complex to follow."""

    def copy(self) -> Matcher:
        """Another sequence at the same place."""


class CompiledGrammar(Protocol):
    """A grammar that is ready to be followed by any number of sequences."""

    shortest: int  # tokens of a short whole text; how short: the backend's docstring
    size: int  # bytes

    def start(self, ends: EndConditions, prefix: bytes = b"") -> Matcher:
        """A matcher before the first token, behind `prefix` if the text has begun with it."""

    def needed(self, prefix: bytes) -> int | None:
        """Tokens that complete a text which has begun so; None if none does."""


def words(vocab: int) -> int:
    """Words of 32 bits that the mask of one row takes."""
    return -(-vocab // 32)


def set_bits(row: Ints, tokens: npt.NDArray[np.integer] | tuple[int, ...]) -> None:
    """Allows `tokens` in `row`, whatever else it allows."""
    bits = row.view(np.uint32)
    for token in tokens:
        if token // 32 < len(row):
            bits[token // 32] |= np.uint32(1 << (token % 32))


def clear_bits(row: Ints, tokens: Ints) -> None:
    """Takes `tokens` [n], each there once, out of `row`."""
    bits = row.view(np.uint32)
    np.bitwise_and.at(bits, tokens // 32, ~(np.uint32(1) << (tokens % 32).astype(np.uint32)))
