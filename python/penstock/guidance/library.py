"""All guides that a worker knows: compiled once, kept while there is room."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
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
        self._underway: dict[Wanted, Future[Compiled]] = {}
        self._size = 0
        self._vocabulary: Vocabulary | None = None
        self._loading = threading.Lock()

    def prepare(self, wanted: Wanted, most: int) -> None:
        """Compiles a guide unless it is known. `most` is how many tokens the answer may have.
        Raises Refused, Unavailable or NoTokenizer."""
        guide = self._guide(wanted)
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

    def _guide(self, wanted: Wanted) -> Compiled:
        with self._lock:
            found = self._guides.get(wanted)
            if found is not None:
                self._guides.move_to_end(wanted)
                return found
            if self._refusals:
                kind, reason = self._refusals.get(_digest(wanted), (None, ""))
                if kind is not None:
                    raise kind(reason)
            future = self._underway.get(wanted)
            mine = future is None
            if future is None:
                future = self._underway[wanted] = Future()
        if mine:
            self._compile(wanted, future)
        return future.result()

    def _compile(self, wanted: Wanted, future: Future[Compiled]) -> None:
        guide: Compiled | None = None
        error: BaseException | None = None
        try:
            guide = self._made(wanted)
        except BaseException as raised:
            error = raised
        with self._lock:
            del self._underway[wanted]
            if guide is not None:
                self._keep(wanted, guide)
            elif isinstance(error, Refused) and not isinstance(error, Crowded):
                self._refusals[_digest(wanted)] = type(error), str(error)
                while len(self._refusals) > MOST_REFUSALS:
                    self._refusals.popitem(last=False)
        if guide is not None:
            future.set_result(guide)
        else:
            future.set_exception(error or Fault("nothing was compiled"))

    def _keep(self, wanted: Wanted, guide: Compiled) -> None:
        self._guides[wanted] = guide
        self._size += guide.size + len(wanted.text)
        while self._size > MOST_BYTES and len(self._guides) > 1:
            dropped, old = self._guides.popitem(last=False)
            self._size -= old.size + len(dropped.text)

    def _made(self, wanted: Wanted) -> Compiled:
        if wanted.thoughts is not None:
            inner = self._guide(replace(wanted, thoughts=None))
            return ThoughtfulGuide(inner, wanted.thoughts, self.vocabulary(), wanted.complete)
        either = calls.alternatives(wanted)
        if either is not None:
            return EitherGuide([self._guide(one) for one in either])
        if self._vocabulary is None:  # while the guide is being compiled
            threading.Thread(target=self._read, name="vocabulary", daemon=True).start()
        made = self._pool.compile(wanted)
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
