"""What a step needs of all its constrained sequences, whatever grammars they follow.

A mask is made by a thread of the extension, from when its sequence's last token is known. A step
waits for it as long as the step can, and goes on without those that are late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import _core
from penstock.grammar.composite import SpecialTokenMatcher
from penstock.grammar.lazy import LazyMatcher
from penstock.grammar.native import NativeMatcher
from penstock.grammar.protocol import GrammarRejected, Matcher
from penstock.grammar.reasoning import ReasoningMatcher

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class FillResult:
    """What came of a step's masks, by the indices of their matchers."""

    closing: list[int] = field(default_factory=list)  # tokens left forbid what the grammar allows
    refused: list[tuple[int, str]] = field(default_factory=list)  # cannot go on, and why
    late: list[int] = field(default_factory=list)  # not made yet: all is allowed


def advance(matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
    """Has each matcher take a token."""
    native, taken = list[_core.Matcher](), list[int]()
    for matcher, token in zip(matchers, tokens, strict=True):
        if isinstance(matcher, NativeMatcher):
            native.append(matcher.own)
            taken.append(token)
        else:
            matcher.advance(token)
    _core.advance_matchers(native, taken)


def begin(matchers: Sequence[Matcher], words: int) -> None:
    """Begins the masks of the next tokens, of so many words, unless they are begun."""
    native = [own for own in map(_native, matchers) if own is not None]
    if native:
        _core.begin_masks(native, words)


def fill(
    matchers: Sequence[Matcher], rows: Tensor, left: Callable[[], float] | None = None
) -> FillResult:
    """Writes the masks of the next tokens into `rows` [matchers, words] int32. `left` gives the
    seconds until they are due, is called again when those have passed, and ends the waiting with 0;
    without it they are waited for."""
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
    """The extension's matcher whose mask is that of `matcher`, if there is one."""
    while matcher is not None:
        if isinstance(matcher, NativeMatcher):
            return matcher.own
        if isinstance(matcher, ReasoningMatcher):
            matcher = matcher.plain
        elif isinstance(matcher, LazyMatcher | SpecialTokenMatcher):
            matcher = matcher.inner
        else:
            return None
    return None
