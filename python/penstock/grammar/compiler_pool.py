"""Schedules compilations fairly, in a quick and a slow lane.

A grammar whose repetitions predict a long compilation starts in the slow lane. All others start in
the quick lane. One that has used QUICK_SECONDS of CPU time while others wait for that lane moves to
the slow lane if it has a free place; else it is stopped and restarts when there is one. A client
holds at most one place of the slow lane, and at most SHARE more of its grammars wait for it;
MOST_WAITING grammars wait in all. A compilation is cancelled when all its callers have left.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import Any

from penstock.grammar import cost
from penstock.grammar.automaton import Automaton
from penstock.grammar.compiler_process import (
    CompilationKilled,
    CompileRequest,
    CompilerProcess,
    Reply,
)
from penstock.grammar.fair_queue import Caller, FairSemaphore
from penstock.grammar.llguidance_backend import Growth, LlguidanceGrammar
from penstock.grammar.protocol import (
    CompileLimitExceeded,
    CompileQueueFull,
    CompilerUnavailable,
    GrammarKind,
    GrammarRejected,
    GrammarSpec,
)

# Concurrent compilations, at low priority. After a worker was lost, the grammars of all running
# sequences are compiled again.
QUICK, SLOW = min(8, max(2, len(os.sched_getaffinity(0)) // 2)), 1
# CPU time of a grammar in the quick lane if others wait for it. CPU time, because wall time grows
# on a busy machine.
QUICK_SECONDS = 0.5
PAUSE = 0.05  # seconds between polls
COMPILE_SECONDS = 15.0  # of one grammar in wall time; its CPU time has a lower limit
MOST_WAITING = 6  # for the slow lane
SHARE = 2  # of one client


class CompilerPool:
    """A thread-safe compiler; its process starts with the first grammar."""

    def __init__(self, tokenizer: Path, vocab: int, quick: int = QUICK) -> None:
        self._process = CompilerProcess(tokenizer, vocab)
        self._quick, self._slow = FairSemaphore(quick), FairSemaphore(SLOW, 1)

    def compile(
        self, spec: GrammarSpec, caller: Caller | None = None
    ) -> Automaton | LlguidanceGrammar:
        """Compiles a grammar.

        Raises GrammarRejected, also for what takes too much time or memory; CompilerUnavailable or
        NoTokenizer if no grammar can be compiled; CompilationCancelled once the caller has left.
        """
        caller = caller or Caller()
        try:
            return _made(*self._compiled(spec, caller))
        except CompilationKilled as error:
            caller.check()
            raise CompileLimitExceeded(
                f"the {spec.kind.value} takes too much time or memory to compile; make it simpler"
            ) from error

    def close(self) -> None:
        """Stops the process; its compilations fail."""
        self._process.close()

    def _compiled(self, spec: GrammarSpec, caller: Caller) -> Reply:
        request: CompileRequest | None = None
        if spec.kind is not GrammarKind.REGEX or not cost.is_costly(spec.text):
            request, reply = self._try_quick_lane(spec, caller)
            if reply is not None:
                return reply
        if request is not None and not self._slow.enter(caller, most=0):
            self._process.stop(request)
            request = None
        if request is None and not self._slow.enter(caller, MOST_WAITING, SHARE):
            raise CompileQueueFull(
                f"the {spec.kind.value} takes long to compile, and too many such grammars wait: at "
                f"most {SHARE} per client, and {MOST_WAITING} in all; make it simpler, or try "
                "again later"
            )
        try:
            return self._reply(request or self._submit(spec, caller), COMPILE_SECONDS)
        finally:
            self._slow.leave(caller)

    def _try_quick_lane(
        self, spec: GrammarSpec, caller: Caller
    ) -> tuple[CompileRequest, Reply | None]:
        """Returns the reply; None if the grammar should make way for others."""
        self._quick.enter(caller)
        try:
            request = self._submit(spec, caller)
            began = time.monotonic()
            while time.monotonic() - began < COMPILE_SECONDS:
                try:
                    return request, request.reply.result(PAUSE)
                except NotYet:
                    if self._quick.waiting and request.cpu_seconds() > QUICK_SECONDS:
                        return request, None
            return request, self._reply(request, 0)
        finally:
            self._quick.leave(caller)

    def _submit(self, spec: GrammarSpec, caller: Caller) -> CompileRequest:
        """Starts a compilation; it is stopped when the caller leaves."""
        caller.check()
        request = self._process.submit(spec)
        forget = caller.on_cancel(lambda: self._process.stop(request))
        request.reply.add_done_callback(lambda _: forget())
        return request

    def _reply(self, request: CompileRequest, seconds: float) -> Reply:
        """Waits for the reply; after `seconds`, stops the compilation and raises
        CompilationKilled."""
        try:
            return request.reply.result(seconds)
        except NotYet:
            self._process.stop(request)
        try:
            return request.reply.result(COMPILE_SECONDS)
        except NotYet as error:
            self._process.kill()  # it does not respond to `stop` either
            raise CompilerUnavailable(
                "the process that compiles grammars does not respond"
            ) from error


def _made(head: dict[str, Any], body: bytes) -> Automaton | LlguidanceGrammar:
    if "costly" in head:
        raise CompileLimitExceeded(head["costly"])
    if "refused" in head:
        raise GrammarRejected(head["refused"])
    if "grammar" in head:
        growth = None if head["growth"] is None else Growth(*head["growth"])
        return LlguidanceGrammar(head["grammar"], growth)
    return Automaton.from_bytes(head["states"], body)
