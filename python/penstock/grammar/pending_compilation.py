"""A grammar that is being made, and those that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from penstock.faults import Fault
from penstock.grammar.fair_queue import Caller
from penstock.grammar.protocol import CompiledGrammar


class PendingCompilation:
    """Made for the first caller, shared with those that ask meanwhile. `join` and `leave` are
    called under the library's lock."""

    def __init__(self, client: str) -> None:
        self.caller = Caller(client)  # of what is compiled: withdrawn when the last one has left
        self._made: Future[CompiledGrammar] = Future()
        self._waiting = 0

    def join(self) -> None:
        """One more waits."""
        self._waiting += 1

    def leave(self) -> bool:
        """One less does; whether that was the last."""
        self._waiting -= 1
        return not self._waiting

    def wait(self, caller: Caller, leave: Callable[[], None]) -> CompiledGrammar:
        """The grammar, or raises what it ended with. If the caller leaves before, calls `leave` and
        raises CompilationCancelled."""
        over = threading.Event()
        forget = caller.on_cancel(over.set)
        self._made.add_done_callback(lambda _: over.set())
        over.wait()
        forget()
        if not self._made.done():
            leave()
            caller.check()
        return self._made.result()

    def end(self, grammar: CompiledGrammar | None, error: BaseException | None) -> None:
        """Tells all that wait."""
        if grammar is not None:
            self._made.set_result(grammar)
        else:
            self._made.set_exception(error or Fault("nothing was compiled"))
