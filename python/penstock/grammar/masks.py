"""The masks of all constrained sequences of a step, for any kind of grammar.

A thread of the extension computes a mask as soon as its sequence's last token is known. A step
waits for masks up to a deadline and goes on without the late ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import _core
from penstock.grammar.composite import ForcedPrefixMatcher
from penstock.grammar.lazy import LazyMatcher
from penstock.grammar.native import NativeMatcher
from penstock.grammar.protocol import GrammarRejected, Matcher
from penstock.grammar.reasoning import ReasoningMatcher

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class FillResult:
    """The result of a step's masks, by the indices of their matchers."""

    closing: list[int] = field(default_factory=list)  # narrowed by the token budget
    refused: list[tuple[int, str]] = field(default_factory=list)  # failed grammars, with the reason
    late: list[int] = field(default_factory=list)  # masks not ready: every token is allowed


def advance(matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
    """Advances each matcher by one token."""
    native, taken = list[_core.Matcher](), list[int]()
    for matcher, token in zip(matchers, tokens, strict=True):
        if isinstance(matcher, NativeMatcher):
            native.append(matcher.own)
            taken.append(token)
        else:
            matcher.advance(token)
    _core.advance_matchers(native, taken)


def begin(matchers: Sequence[Matcher], words: int) -> None:
    """Starts the masks of the next tokens, of `words` 32-bit words, unless started already."""
    native = [own for own in map(_native, matchers) if own is not None]
    if native:
        _core.begin_masks(native, words)


def fill(
    matchers: Sequence[Matcher], rows: Tensor, left: Callable[[], float] | None = None
) -> FillResult:
    """Writes the masks of the next tokens into `rows` [matchers, words] int32.

    left: returns the seconds until the masks are due; called again after that time, until it
    returns 0. Without it, waits for all masks.
    """
    begin(matchers, rows.shape[1])
    native = [_native(matcher) for matcher in matchers]
    begun = [own for own in native if own is not None]
    if left is None:
        _core.wait_for_masks(begun)
    else:
        while not _core.wait_for_masks(begun, seconds := left()) and seconds > 0:
            pass
    filled = FillResult(*_core.fill_masks(native, rows))
    for place, matcher in enumerate(matchers):
        if native[place] is not None:
            continue
        row = rows[place].numpy()
        try:
            if matcher.fill(row):
                filled.closing.append(place)
        except GrammarRejected as error:
            row[:] = -1
            filled.refused.append((place, str(error)))
    return filled


def _native(matcher: Matcher | None) -> _core.Matcher | None:
    """Returns the native matcher whose mask is that of `matcher`, if there is one."""
    while matcher is not None:
        if isinstance(matcher, NativeMatcher):
            return matcher.own
        if isinstance(matcher, ReasoningMatcher):
            matcher = matcher.plain
        elif isinstance(matcher, LazyMatcher | ForcedPrefixMatcher):
            matcher = matcher.inner
        else:
            return None
    return None
