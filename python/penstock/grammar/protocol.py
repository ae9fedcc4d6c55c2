"""The protocols that all backends implement."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.faults import Fault

Ints = npt.NDArray[np.int32]


class GrammarRejected(Fault):
    """An invalid or unsupported grammar: the request's fault. Names the rule and the value."""


class CompileLimitExceeded(GrammarRejected):
    """A grammar that took too much time or memory to compile. This depends on the machine and
    its load, so the ranks of a group may disagree about it."""


class CompileQueueFull(CompileLimitExceeded):
    """A grammar that takes long to compile while too many others wait."""


class CompilerUnavailable(Fault):
    """A compilation that failed for a reason other than the request."""


class GrammarKind(enum.Enum):
    """The language of a grammar's text."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"  # Lark, or EBNF with `root ::=`
    CALLS = "calls"  # JSON: see `tool_calls`
    TEXT = "text"  # any text


@dataclass(frozen=True)
class Reasoning:
    """The marks of a model's reasoning."""

    open: bytes
    close: bytes
    started: bool  # the prompt ends inside the reasoning
    header: bytes = b""  # must follow `close`, before the text; with names of special tokens


@dataclass(frozen=True)
class GrammarSpec:
    """The grammar of a request: everything that its masks depend on."""

    kind: GrammarKind
    text: str
    complete: bool  # complete the text within the token budget
    reasoning: Reasoning | None = None  # reasoning that may precede the text


@dataclass(frozen=True)
class EndConditions:
    """How one sequence may end: the part of a grammar that differs per request."""

    tokens: tuple[int, ...]  # end tokens, allowed where the text may end
    most: int  # maximum number of generated tokens
    most_reasoning: int | None = None  # tokens after which reasoning is closed


class Matcher(Protocol):
    """The matcher of one sequence. Its state is a function of the tokens that the sequence
    emitted."""

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    @property
    def ended(self) -> bool:
        """Whether the text is over: it has ended, or a token came that no mask allowed."""

    @property
    def unconstrained(self) -> bool:
        """Whether every token is allowed, so that there is no mask to fill."""

    def advance(self, token: int) -> None:
        """Advances by one emitted token. A token that no mask allowed ends the grammar."""

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token, bit i % 32 of word i // 32 for token i, into `row`
        [words].

        Returns whether the token budget forbids tokens that the grammar allows. Raises
        GrammarRejected where the grammar becomes too complex to continue.
        """

    def copy(self) -> Matcher:
        """Returns a copy for another sequence."""


class CompiledGrammar(Protocol):
    """A compiled grammar, shared by any number of sequences."""

    shortest: int  # tokens of a short complete text; how short: see the backend
    size: int  # bytes

    def start(self, ends: EndConditions, prefix: bytes = b"") -> Matcher:
        """Returns a matcher behind `prefix`, before the first token."""

    def needed(self, prefix: bytes) -> int | None:
        """Returns the tokens that complete a text that begins with `prefix`; None if there is
        none."""


def words(vocab: int) -> int:
    """Returns the 32-bit words per row of a mask."""
    return -(-vocab // 32)


def set_bits(row: Ints, tokens: npt.NDArray[np.integer] | tuple[int, ...]) -> None:
    """Sets the bits of `tokens` in `row`."""
    bits = row.view(np.uint32)
    for token in tokens:
        if token // 32 < len(row):
            bits[token // 32] |= np.uint32(1 << (token % 32))


def clear_bits(row: Ints, tokens: Ints) -> None:
    """Clears the bits of `tokens` [n], each listed once, in `row`."""
    bits = row.view(np.uint32)
    np.bitwise_and.at(bits, tokens // 32, ~(np.uint32(1) << (tokens % 32).astype(np.uint32)))
