"""How an llguidance document ends soonest: a short completion of its text, byte by byte.

llguidance says what may follow, not how far the end is. A second matcher, over single bytes, is
cheap enough (a microsecond a byte) to try the completion that JSON suggests: close what is open,
else take the shortest thing that is allowed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.guidance.vocabulary import Vocabulary

MOST_BYTES = 8192  # of a completion
END = 256  # the byte tokenizer's end token
CLOSERS = b"}],:"  # outside of strings, in the order of what ends most
OPENERS = b"{["  # outside of strings: what they open must be closed again, and may be endless
VALUES = b"0123456789"  # begin the shortest values


class Quotes(enum.Enum):
    """Where a place in a JSON text is."""

    OUTSIDE = 0
    INSIDE = 1  # of a string
    ESCAPED = 2  # behind a backslash

    def after(self, text: Iterable[int]) -> Quotes:
        """Where `text` leads."""
        place = self
        for byte in text:
            if place is Quotes.ESCAPED:
                place = Quotes.INSIDE
            elif byte == ord('"'):
                place = Quotes.OUTSIDE if place is Quotes.INSIDE else Quotes.INSIDE
            elif byte == ord("\\") and place is Quotes.INSIDE:
                place = Quotes.ESCAPED
        return place


class _Bytes:
    """What llguidance asks of a tokenizer, for one whose tokens are the 256 bytes."""

    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([b]) for b in range(256)), b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def byte_tokenizer() -> Any:
    """A tokenizer of single bytes."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, slices=[])


def completion(matcher: Any, place: Quotes) -> bytes | None:
    """A short text that makes what the byte matcher has taken whole; None if none was found.
    `place` is where it ends now."""
    trial = matcher.deep_copy()
    text = bytearray()
    used = [0] * 256
    while not trial.is_accepting():
        if trial.is_error() or len(text) > MOST_BYTES:
            return None
        forced = trial.compute_ff_bytes()
        if not forced:
            forced = _choice(trial.compute_bitmask(), place, used)
        if not forced or not trial.consume_tokens(list(forced)):
            return None
        for byte in forced:
            used[byte] += 1
        place = place.after(forced)
        text += forced
    return bytes(text)


def _choice(mask: bytes, place: Quotes, used: list[int]) -> bytes:
    """The likeliest to lead to the end: closers, then bytes that open nothing, those first that
    were used least. So a pattern such as (ab)+c is left even if `a` comes before `c`, and a list of
    links ends in `null` rather than in one more link."""
    flags = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:256]
    for byte in CLOSERS if place is Quotes.OUTSIDE else b'"':
        if flags[byte]:
            return bytes([byte])
    allowed: list[int] = np.flatnonzero(flags).tolist()
    if not allowed:
        return b""
    plain = [byte for byte in allowed if byte > ord(" ") and byte != ord("\\")] or allowed
    if place is Quotes.OUTSIDE:
        plain = [byte for byte in plain if byte not in OPENERS] or plain
    return bytes([min(plain, key=lambda byte: (used[byte], byte not in VALUES, byte))])


def segmented(text: bytes, vocabulary: Vocabulary) -> list[bytes] | None:
    """The fewest tokens that spell `text`; None if none do."""
    best: list[tuple[int, int]] = [(0, 0)]  # (tokens, where the last one begins) up to each byte
    longest, texts = vocabulary.longest, vocabulary.texts
    for end in range(1, len(text) + 1):
        starts = range(max(0, end - longest), end)
        found = [(best[s][0] + 1, s) for s in starts if text[s:end] in texts and best[s][0] >= 0]
        best.append(min(found, default=(-1, 0)))
    if best[-1][0] < 0:
        return None
    parts, end = [], len(text)
    while end:
        start = best[end][1]
        parts.append(text[start:end])
        end = start
    return parts[::-1]
