"""Compiles guides in fair turns: what takes long waits for its like, and for nobody else.

A guide whose repetitions tell that it takes long goes to the slow lane. All others begin in the
quick one; one that has used QUICK_SECONDS of a processor while others wait for that lane goes on in
the slow lane if there is a place, else it is stopped, and begins again when there is one. A client
has at most one place of the slow lane, and SHARE more of its guides wait for it; MOST_WAITING are
not kept waiting in all. A guide whose callers have all left is given up.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import Any

from penstock.guidance import cost
from penstock.guidance.automaton import Automaton
from penstock.guidance.earley import Grammar, Growth
from penstock.guidance.process import Asked, Ended, Process, Reply
from penstock.guidance.protocol import Crowded, Kind, Refused, TooCostly, Unavailable, Wanted
from penstock.guidance.turns import Caller, Lane

# Guides that are compiled at once, at low priority: after a worker was lost, those of all running
# sequences are.
QUICK, SLOW = min(8, max(2, len(os.sched_getaffinity(0)) // 2)), 1
# Processor time of a guide in the quick lane, if others wait for it. On a busy machine all take
# longer, which is nobody's fault.
QUICK_SECONDS = 0.5
PAUSE = 0.05  # seconds between looks whether others wait
COMPILE_SECONDS = 15.0  # of one guide in all; its processor time is bounded sooner
MOST_WAITING = 6  # for the slow lane
SHARE = 2  # of one client


class Pool:
    """Used by many threads; nothing is started before the first guide."""

    def __init__(self, tokenizer: Path, vocab: int, quick: int = QUICK) -> None:
        self._process = Process(tokenizer, vocab)
        self._quick, self._slow = Lane(quick), Lane(SLOW, 1)

    def compile(self, wanted: Wanted, caller: Caller | None = None) -> Automaton | Grammar:
        """Raises Refused, also for what takes too long or too much memory; Unavailable or
        NoTokenizer if nothing can be compiled; Withdrawn once the caller has left."""
        caller = caller or Caller()
        try:
            return _made(*self._compiled(wanted, caller))
        except Ended as error:
            caller.check()
            raise TooCostly(
                f"the {wanted.kind.value} takes too much time or memory to compile; make it simpler"
            ) from error

    def close(self) -> None:
        """Ends the process; what it compiles is refused."""
        self._process.close()

    def _compiled(self, wanted: Wanted, caller: Caller) -> Reply:
        asked: Asked | None = None
        if wanted.kind is not Kind.REGEX or not cost.is_costly(wanted.text):
            asked, reply = self._quickly(wanted, caller)
            if reply is not None:
                return reply
        if asked is not None and not self._slow.enter(caller, most=0):
            self._process.stop(asked)
            asked = None
        if asked is None and not self._slow.enter(caller, MOST_WAITING, SHARE):
            raise Crowded(
                f"the {wanted.kind.value} takes long to compile, and others that do are waiting: "
                f"at most {SHARE} of a client, and {MOST_WAITING} in all; make it simpler, or try "
                "again later"
            )
        try:
            return self._reply(asked or self._ask(wanted, caller), COMPILE_SECONDS)
        finally:
            self._slow.leave(caller)

    def _quickly(self, wanted: Wanted, caller: Caller) -> tuple[Asked, Reply | None]:
        """The reply, unless others should go first."""
        self._quick.enter(caller)
        try:
            asked = self._ask(wanted, caller)
            began = time.monotonic()
            while time.monotonic() - began < COMPILE_SECONDS:
                try:
                    return asked, asked.reply.result(PAUSE)
                except NotYet:
                    if self._quick.waiting and asked.used() > QUICK_SECONDS:
                        return asked, None
            return asked, self._reply(asked, 0)
        finally:
            self._quick.leave(caller)

    def _ask(self, wanted: Wanted, caller: Caller) -> Asked:
        """Begins to compile a guide, which ends when the caller leaves."""
        caller.check()
        asked = self._process.ask(wanted)
        forget = caller.when_withdrawn(lambda: self._process.stop(asked))
        asked.reply.add_done_callback(lambda _: forget())
        return asked

    def _reply(self, asked: Asked, seconds: float) -> Reply:
        """Raises Ended after that time, at the latest."""
        try:
            return asked.reply.result(seconds)
        except NotYet:
            self._process.stop(asked)
        try:
            return asked.reply.result(COMPILE_SECONDS)
        except NotYet as error:
            self._process.kill()  # it does not even answer that it has stopped
            raise Unavailable("the process that compiles grammars does not answer") from error


def _made(head: dict[str, Any], body: bytes) -> Automaton | Grammar:
    if "costly" in head:
        raise TooCostly(head["costly"])
    if "refused" in head:
        raise Refused(head["refused"])
    if "grammar" in head:
        growth = None if head["growth"] is None else Growth(*head["growth"])
        return Grammar(head["grammar"], growth)
    return Automaton.from_bytes(head["states"], body)
