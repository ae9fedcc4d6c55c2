"""Compiles guides in fair turns: what takes long waits for its like, and for nobody else.

Every guide begins in the quick lane. One that has used QUICK_SECONDS of a processor while others
wait for that lane goes on in the slow lane if there is a place, else it is stopped, and begins
again when there is one; more than MOST_WAITING are not kept waiting.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import Any

from penstock.guidance.automaton import Automaton
from penstock.guidance.earley import Grammar, Growth
from penstock.guidance.process import Asked, Ended, Process, Reply
from penstock.guidance.protocol import Crowded, Refused, TooCostly, Unavailable, Wanted

# Guides that are compiled at once, at low priority: after a worker was lost, those of all running
# sequences are.
QUICK, SLOW = min(8, max(2, len(os.sched_getaffinity(0)) // 2)), 1
# Processor time of a guide in the quick lane, if others wait for it. On a busy machine all take
# longer, which is nobody's fault.
QUICK_SECONDS = 0.5
PAUSE = 0.05  # seconds between looks whether others wait
COMPILE_SECONDS = 15.0  # of one guide in all; its processor time is bounded sooner
MOST_WAITING = 4  # for the slow lane


class Lane:
    """Places, and how many wait for one."""

    def __init__(self, places: int) -> None:
        self._free = threading.Semaphore(places)
        self._lock = threading.Lock()
        self.waiting = 0

    def enter(self, most: int | None = None) -> bool:
        """Waits for a place; False if `most` wait already."""
        if self._free.acquire(blocking=False):
            return True
        with self._lock:
            if most is not None and self.waiting >= most:
                return False
            self.waiting += 1
        self._free.acquire()
        with self._lock:
            self.waiting -= 1
        return True

    def leave(self) -> None:
        self._free.release()


class Pool:
    """Used by many threads; nothing is started before the first guide."""

    def __init__(self, tokenizer: Path, vocab: int, quick: int = QUICK) -> None:
        self._process = Process(tokenizer, vocab)
        self._quick, self._slow = Lane(quick), Lane(SLOW)

    def compile(self, wanted: Wanted) -> Automaton | Grammar:
        """Raises Refused, also for what takes too long or too much memory; Unavailable or
        NoTokenizer if nothing can be compiled."""
        try:
            return _made(*self._compiled(wanted))
        except Ended as error:
            raise TooCostly(
                f"the {wanted.kind.value} takes too much time or memory to compile; make it simpler"
            ) from error

    def close(self) -> None:
        """Ends the process; what it compiles is refused."""
        self._process.close()

    def _compiled(self, wanted: Wanted) -> Reply:
        asked, reply = self._quickly(wanted)
        if reply is not None:
            return reply
        stays = self._slow.enter(most=0)
        if not stays:
            self._process.stop(asked)
            if not self._slow.enter(MOST_WAITING):
                raise Crowded(
                    f"the {wanted.kind.value} takes long to compile, and {MOST_WAITING} others "
                    "that do are waiting; make it simpler, or try again later"
                )
        try:
            return self._reply(asked if stays else self._process.ask(wanted), COMPILE_SECONDS)
        finally:
            self._slow.leave()

    def _quickly(self, wanted: Wanted) -> tuple[Asked, Reply | None]:
        """The reply, unless others should go first."""
        self._quick.enter()
        try:
            asked = self._process.ask(wanted)
            began = time.monotonic()
            while time.monotonic() - began < COMPILE_SECONDS:
                try:
                    return asked, asked.reply.result(PAUSE)
                except NotYet:
                    if self._quick.waiting and asked.used() > QUICK_SECONDS:
                        return asked, None
            return asked, self._reply(asked, 0)
        finally:
            self._quick.leave()

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
