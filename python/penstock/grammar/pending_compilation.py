"""A running compilation and its callers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from penstock.faults import Fault
from penstock.grammar.fair_queue import Caller
from penstock.grammar.protocol import CompiledGrammar


class PendingCompilation:
    """A compilation started for the first caller and shared with later ones. `join` and `leave`
    require the cache's lock."""

    def __init__(self, client: str) -> None:
        self.caller = Caller(client)  # cancelled when the last caller has left
        self._made: Future[CompiledGrammar] = Future()
        self._waiting = 0

    def join(self) -> None:
        """Adds a caller."""
        self._waiting += 1

    def leave(self) -> bool:
        """Removes a caller. Returns whether it was the last."""
        self._waiting -= 1
        return not self._waiting

    def wait(self, caller: Caller, leave: Callable[[], None]) -> CompiledGrammar:
        """Waits for the grammar and returns it, or raises the compilation's error. If the caller
        leaves earlier, calls `leave` and raises CompilationCancelled."""
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
        """Completes the compilation for all callers."""
        if grammar is not None:
            self._made.set_result(grammar)
        else:
            self._made.set_exception(error or Fault("nothing was compiled"))
