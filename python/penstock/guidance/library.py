"""All guides that a worker knows: compiled once, kept while there is room."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.faults import Fault
from penstock.guidance import automaton, calls, earley
from penstock.guidance.earley import Grammar
from penstock.guidance.either import EitherGuide
from penstock.guidance.pool import Pool
from penstock.guidance.protocol import (
    Compiled,
    Crowded,
    Cursor,
    Ends,
    Kind,
    Refused,
    TooCostly,
    Unavailable,
    Wanted,
)
from penstock.guidance.thoughts import ThoughtfulGuide
from penstock.guidance.turns import Caller
from penstock.guidance.underway import Underway
from penstock.guidance.vocabulary import Vocabulary

MOST_BYTES = 256 << 20  # of compiled guides
MOST_REFUSALS = 1024  # remembered, by digest, so that a bad guide costs once


class Library:
    """Used by many threads. Nothing happens before the first guide is asked for.

    ranks: workers of the group, each of which has a library of its own.
    """

    def __init__(self, tokenizer: Path, vocab: int, ranks: int = 1) -> None:
        self._path, self._vocab, self._ranks = tokenizer, vocab, ranks
        self._pool = Pool(tokenizer, vocab)
        self._lock = threading.Lock()
        self._guides: OrderedDict[Wanted, Compiled] = OrderedDict()
        self._refusals: OrderedDict[bytes, tuple[type[Refused], str]] = OrderedDict()
        self._underway: dict[Wanted, Underway] = {}
        self._size = 0
        self._vocabulary: Vocabulary | None = None
        self._loading = threading.Lock()

    def prepare(self, wanted: Wanted, most: int, caller: Caller | None = None) -> None:
        """Compiles a guide unless it is known. `most` is how many tokens the answer may have.
        Raises Refused, Unavailable or NoTokenizer; Withdrawn once the caller has left."""
        guide = self._guide(wanted, caller)
        if wanted.complete and guide.shortest > most:
            raise Refused(
                f"the shortest document needs {guide.shortest} tokens, and the answer may have "
                f"{most}; allow at least {guide.shortest}"
            )

    def holds(self, wanted: Wanted) -> bool:
        """Whether a sequence may follow a guide now: a step does not wait for one that was dropped
        to be compiled again, unless the other ranks may have kept theirs."""
        with self._lock:
            return wanted in self._guides or self._ranks > 1

    def cursor(self, wanted: Wanted, ends: Ends, emitted: Sequence[int]) -> Cursor:
        """Where a sequence is after `emitted`. Compiles a guide that it does not hold."""
        cursor = self._guide(wanted).start(ends)
        for token in emitted:
            cursor.advance(token)
        return cursor

    def agreed(self, fault: Fault) -> bool:
        """Whether every rank comes to this fault: then all leave the sequence out of the step."""
        return self._ranks == 1 or not isinstance(fault, TooCostly | Unavailable)

    def close(self) -> None:
        """Ends the process that compiles; nothing can be compiled any more."""
        self._pool.close()

    def _guide(self, wanted: Wanted, caller: Caller | None = None) -> Compiled:
        caller = caller or Caller()
        with self._lock:
            found = self._guides.get(wanted)
            if found is not None:
                self._guides.move_to_end(wanted)
                return found
            if self._refusals:
                kind, reason = self._refusals.get(_digest(wanted), (None, ""))
                if kind is not None:
                    raise kind(reason)
            underway = self._underway.get(wanted)
            mine = underway is None
            if underway is None:
                underway = self._underway[wanted] = Underway(caller.client)
            underway.join()
        if mine:
            # A thread of its own: whoever asked first may leave before others that wait do.
            asked = wanted, underway
            threading.Thread(target=self._compile, args=asked, name="guide", daemon=True).start()
        return underway.wait(caller, lambda: self._leave(wanted, underway))

    def _leave(self, wanted: Wanted, underway: Underway) -> None:
        """One that waited for a guide has left. Whoever asks for it after the last one begins
        anew."""
        with self._lock:
            last = underway.leave()
            if last and self._underway.get(wanted) is underway:
                del self._underway[wanted]
        if last:
            underway.caller.withdraw()

    def _compile(self, wanted: Wanted, underway: Underway) -> None:
        guide: Compiled | None = None
        error: BaseException | None = None
        try:
            guide = self._made(wanted, underway.caller)
        except BaseException as raised:
            error = raised
        with self._lock:
            if self._underway.get(wanted) is underway:
                del self._underway[wanted]
            if guide is not None:
                self._keep(wanted, guide)
            elif isinstance(error, Refused) and not isinstance(error, Crowded):
                self._refusals[_digest(wanted)] = type(error), str(error)
                while len(self._refusals) > MOST_REFUSALS:
                    self._refusals.popitem(last=False)
        underway.end(guide, error)

    def _keep(self, wanted: Wanted, guide: Compiled) -> None:
        before = self._guides.pop(wanted, None)
        if before is not None:
            self._size -= before.size + len(wanted.text)
        self._guides[wanted] = guide
        self._size += guide.size + len(wanted.text)
        while self._size > MOST_BYTES and len(self._guides) > 1:
            dropped, old = self._guides.popitem(last=False)
            self._size -= old.size + len(dropped.text)

    def _made(self, wanted: Wanted, caller: Caller) -> Compiled:
        if wanted.thoughts is not None:
            inner = self._guide(replace(wanted, thoughts=None), caller)
            return ThoughtfulGuide(inner, wanted.thoughts, self.vocabulary(), wanted.complete)
        either = calls.alternatives(wanted)
        if either is not None:
            return EitherGuide([self._guide(one, caller) for one in either])
        if self._vocabulary is None:  # while the guide is being compiled
            threading.Thread(target=self._read, name="vocabulary", daemon=True).start()
        made = self._pool.compile(wanted, caller)
        vocabulary = self.vocabulary()
        if isinstance(made, Grammar):
            guide: Compiled = earley.guide(made, vocabulary)
        else:
            guide = automaton.guide(made, vocabulary, wanted.complete)
        if wanted.kind is not Kind.CALLS:
            return guide
        return calls.framed(guide, wanted.text, vocabulary)

    def _read(self) -> None:
        with contextlib.suppress(Fault):  # whoever waits for it gets it
            self.vocabulary()

    def vocabulary(self) -> Vocabulary:
        """The model's tokens, read when first needed."""
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._path, self._vocab)
            return self._vocabulary


def _digest(wanted: Wanted) -> bytes:
    """Stands for a guide whose text, of up to a megabyte, need not be kept."""
    return hashlib.sha256(repr(wanted).encode("utf-8", "surrogatepass")).digest()
