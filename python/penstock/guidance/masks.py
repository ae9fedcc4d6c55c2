"""What a step needs of all its guided sequences, whatever guides they follow.

A mask is made by a thread of the extension, from when its sequence's last token is known. A step
waits for it as long as the step can, and goes on without those that are late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import _core
from penstock.guidance.either import MarkedCursor
from penstock.guidance.lazy import LazyCursor
from penstock.guidance.native import NativeCursor
from penstock.guidance.protocol import Cursor, Refused
from penstock.guidance.thoughts import ThoughtCursor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Filled:
    """What came of a step's masks, by the indices of their cursors."""

    closing: list[int] = field(default_factory=list)  # tokens left forbid what the guide allows
    refused: list[tuple[int, str]] = field(default_factory=list)  # cannot go on, and why
    late: list[int] = field(default_factory=list)  # not made yet: all is allowed


def advance(cursors: Sequence[Cursor], tokens: Sequence[int]) -> None:
    """Has each cursor take a token."""
    native, taken = list[_core.Cursor](), list[int]()
    for cursor, token in zip(cursors, tokens, strict=True):
        if isinstance(cursor, NativeCursor):
            native.append(cursor.own)
            taken.append(token)
        else:
            cursor.advance(token)
    _core.advance_cursors(native, taken)


def begin(cursors: Sequence[Cursor], words: int) -> None:
    """Begins the masks of the next tokens, of so many words, unless they are begun."""
    native = [own for own in map(_native, cursors) if own is not None]
    if native:
        _core.begin_masks(native, words)


def fill(
    cursors: Sequence[Cursor], rows: Tensor, left: Callable[[], float] | None = None
) -> Filled:
    """Writes the masks of the next tokens into `rows` [cursors, words] int32. `left` gives the
    seconds until they are due, is called again when those have passed, and ends the waiting with 0;
    without it they are waited for."""
    begin(cursors, rows.shape[1])
    native = [_native(cursor) for cursor in cursors]
    begun = [own for own in native if own is not None]
    if left is None:
        _core.wait_for_masks(begun)
    else:
        while not _core.wait_for_masks(begun, seconds := left()) and seconds > 0:
            pass
    filled = Filled(*_core.fill_masks(native, rows))
    for place, cursor in enumerate(cursors):
        if native[place] is not None:
            continue
        row = rows[place].numpy()
        try:
            if cursor.fill(row):
                filled.closing.append(place)
        except Refused as error:
            row[:] = -1
            filled.refused.append((place, str(error)))
    return filled


def _native(cursor: Cursor | None) -> _core.Cursor | None:
    """The extension's cursor whose mask is that of `cursor`, if there is one."""
    while cursor is not None:
        if isinstance(cursor, NativeCursor):
            return cursor.own
        if isinstance(cursor, ThoughtCursor):
            cursor = cursor.plain
        elif isinstance(cursor, LazyCursor | MarkedCursor):
            cursor = cursor.inner
        else:
            return None
    return None
