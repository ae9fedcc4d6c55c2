"""The small protocol that all backends speak."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.faults import Fault

Ints = npt.NDArray[np.int32]


class Refused(Fault):
    """A guide that cannot be: the request's own fault. Says which rule and which value."""


class TooCostly(Refused):
    """A guide that took too much time or memory to compile. On another machine, or on another
    day, it might not: the ranks of a group may disagree about it."""


class Crowded(TooCostly):
    """A guide that takes long to compile, while too many others do."""


class Unavailable(Fault):
    """A guide could not be compiled for a reason that is not the request's."""


class Kind(enum.Enum):
    """What a guide's text is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"  # Lark, or EBNF with `root ::=`
    CALLS = "calls"  # JSON: see `calls`


@dataclass(frozen=True)
class Thoughts:
    """What a model says to itself before it answers."""

    open: bytes
    close: bytes
    begun: bool  # the prompt ends inside


@dataclass(frozen=True)
class Wanted:
    """A guide as a request brings it: all that its masks depend on."""

    kind: Kind
    text: str
    complete: bool  # steer to a whole text before the tokens run out
    thoughts: Thoughts | None = None  # what may come before the text


@dataclass(frozen=True)
class Ends:
    """How one sequence may end: what is added to a guide for each request."""

    tokens: tuple[int, ...]  # end tokens, allowed where the text is whole
    most: int  # tokens that the sequence may have generated in all


class Cursor(Protocol):
    """Where one sequence is in its guide: a function of the tokens that it emitted."""

    @property
    def whole(self) -> bool:
        """Whether the text may end here."""

    @property
    def ended(self) -> bool:
        """Whether nothing of the text can follow: it is over, or a token came that no mask
        allowed."""

    @property
    def idle(self) -> bool:
        """Whether every token may follow: there is no mask to fill then."""

    def advance(self, token: int) -> None:
        """Takes one emitted token. One that no mask allowed ends the guide."""

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token, bit i of word i // 32 for token i, into `row`
        [words]. Returns whether the tokens left forbid what the guide alone would allow. Raises
        Refused where the guide becomes too complex to follow."""

    def copy(self) -> Cursor:
        """Another sequence at the same place."""


class Compiled(Protocol):
    """A guide that is ready to be followed by any number of sequences."""

    shortest: int  # tokens of a short whole text; how short: the backend's docstring
    size: int  # bytes

    def start(self, ends: Ends, begun: bytes = b"") -> Cursor:
        """A cursor before the first token, behind `begun` if the text has begun with it."""

    def needed(self, begun: bytes) -> int | None:
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
