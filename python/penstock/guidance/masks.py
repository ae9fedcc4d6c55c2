"""What a step needs of all its guided sequences, whatever guides they follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock import _core
from penstock.guidance.either import MarkedCursor
from penstock.guidance.lazy import LazyCursor
from penstock.guidance.native import NativeCursor
from penstock.guidance.protocol import Cursor, Refused
from penstock.guidance.thoughts import ThoughtCursor

if TYPE_CHECKING:
    from torch import Tensor


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


def fill(cursors: Sequence[Cursor], rows: Tensor) -> tuple[list[int], list[tuple[int, str]]]:
    """Writes the masks of the next tokens into `rows` [cursors, words] int32. Returns the indices
    of those whose tokens left forbid what the guide alone would allow, and of those that cannot go
    on, with the reason: to them all is allowed."""
    native = [_native(cursor) for cursor in cursors]
    closing, refused = _core.fill_masks(native, rows)
    for place, cursor in enumerate(cursors):
        if native[place] is not None:
            continue
        row = rows[place].numpy()
        try:
            if cursor.fill(row):
                closing.append(place)
        except Refused as error:
            row[:] = -1
            refused.append((place, str(error)))
    return closing, refused


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
