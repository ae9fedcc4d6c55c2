"""Compiles grammars in fair turns: what takes long waits for its like, and for nobody else.

A grammar whose repetitions tell that it takes long goes to the slow lane. All others begin in the
quick one; one that has used QUICK_SECONDS of a processor while others wait for that lane goes on in
the slow lane if there is a place, else it is stopped, and begins again when there is one. A client
has at most one place of the slow lane, and SHARE more of its grammars wait for it; MOST_WAITING are
not kept waiting in all. A grammar whose callers have all left is given up.
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

# Grammars that are compiled at once, at low priority: after a worker was lost, those of all running
# sequences are.
QUICK, SLOW = min(8, max(2, len(os.sched_getaffinity(0)) // 2)), 1
# Processor time of a grammar in the quick lane, if others wait for it. On a busy machine all take
# longer, which is nobody's fault.
QUICK_SECONDS = 0.5
PAUSE = 0.05  # seconds between looks whether others wait
COMPILE_SECONDS = 15.0  # of one grammar in all; its processor time is bounded sooner
MOST_WAITING = 6  # for the slow lane
SHARE = 2  # of one client


class CompilerPool:
    """Used by many threads; nothing is started before the first grammar."""

    def __init__(self, tokenizer: Path, vocab: int, quick: int = QUICK) -> None:
        self._process = CompilerProcess(tokenizer, vocab)
        self._quick, self._slow = FairSemaphore(quick), FairSemaphore(SLOW, 1)

    def compile(
        self, spec: GrammarSpec, caller: Caller | None = None
    ) -> Automaton | LlguidanceGrammar:
        """Raises GrammarRejected, also for what takes too long or too much memory;
        CompilerUnavailable or
        NoTokenizer if nothing can be compiled; CompilationCancelled once the caller has left."""
        caller = caller or Caller()
        try:
            return _made(*self._compiled(spec, caller))
        except CompilationKilled as error:
            caller.check()
            raise CompileLimitExceeded(
                f"the {spec.kind.value} takes too much time or memory to compile; make it simpler"
            ) from error

    def close(self) -> None:
        """Ends the process; what it compiles is refused."""
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
                f"the {spec.kind.value} takes long to compile, and others that do are waiting: "
                f"at most {SHARE} of a client, and {MOST_WAITING} in all; make it simpler, or try "
                "again later"
            )
        try:
            return self._reply(request or self._submit(spec, caller), COMPILE_SECONDS)
        finally:
            self._slow.leave(caller)

    def _try_quick_lane(
        self, spec: GrammarSpec, caller: Caller
    ) -> tuple[CompileRequest, Reply | None]:
        """The reply, unless others should go first."""
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
        """Begins to compile a grammar, which ends when the caller leaves."""
        caller.check()
        request = self._process.submit(spec)
        forget = caller.on_cancel(lambda: self._process.stop(request))
        request.reply.add_done_callback(lambda _: forget())
        return request

    def _reply(self, request: CompileRequest, seconds: float) -> Reply:
        """Raises CompilationKilled after that time, at the latest."""
        try:
            return request.reply.result(seconds)
        except NotYet:
            self._process.stop(request)
        try:
            return request.reply.result(COMPILE_SECONDS)
        except NotYet as error:
            self._process.kill()  # it does not even answer that it has stopped
            raise CompilerUnavailable(
                "the process that compiles grammars does not answer"
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
