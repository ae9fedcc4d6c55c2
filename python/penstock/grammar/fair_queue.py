"""Callers of compilations, and a fair semaphore for them."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable

from penstock.faults import Fault

MOST_REMEMBERED = 1024  # clients whose last turn a semaphore remembers


class CompilationCancelled(Fault):
    """All callers of the compilation have left."""


class Caller:
    """A caller that waits for a grammar.

    client: the client of its request; callers without one share one client. Used by the waiting
    thread and by the thread that cancels.
    """

    def __init__(self, client: str = "") -> None:
        self.client = client
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._count = 0
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the caller has left."""
        return self._cancelled

    def cancel(self) -> None:
        """Cancels the caller and calls its callbacks."""
        with self._lock:
            callbacks, self._callbacks = list(self._callbacks.values()), {}
            self._cancelled = True
        for callback in callbacks:
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` when the caller is cancelled, at once if it is already. Returns a
        function that removes the callback."""
        with self._lock:
            gone = self._cancelled
            self._count += 1
            number = self._count
            if not gone:
                self._callbacks[number] = callback
        if gone:
            callback()

        def forget() -> None:
            with self._lock:
                self._callbacks.pop(number, None)

        return forget

    def check(self) -> None:
        """Raises CompilationCancelled if the caller has left."""
        if self._cancelled:
            raise CompilationCancelled("all requests for this grammar were cancelled")


class FairSemaphore:
    """A semaphore with at most `each` places per client. The next place goes to the client that
    holds the fewest, then to the one whose last turn is longest ago."""

    def __init__(self, places: int, each: int | None = None) -> None:
        self._free = places
        self._each = places if each is None else each
        self._changed = threading.Condition()
        self._waiting: list[Caller] = []
        self._admitted: set[Caller] = set()
        self._held: Counter[str] = Counter()
        self._turns: OrderedDict[str, int] = OrderedDict()
        self._count = 0

    @property
    def waiting(self) -> int:
        """Number of waiting callers."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Number of taken places."""
        return self._held.total()

    def enter(self, caller: Caller, most: int | None = None, share: int | None = None) -> bool:
        """Waits for a place.

        Returns False if there is none now and `most` callers wait already, or `share` of the same
        client. Raises CompilationCancelled if the caller leaves meanwhile.
        """
        forget = caller.on_cancel(self._wake)
        try:
            with self._changed:
                self._waiting.append(caller)
                self._admit()
                if caller not in self._admitted and self._crowded(caller, most, share):
                    self._waiting.remove(caller)
                    return False
                while caller not in self._admitted and not caller.cancelled:
                    self._changed.wait()
                if caller not in self._admitted:
                    self._waiting.remove(caller)
                    caller.check()
                return True
        finally:
            forget()

    def leave(self, caller: Caller) -> None:
        """Releases the caller's place."""
        with self._changed:
            self._admitted.remove(caller)
            self._held[caller.client] -= 1
            self._held += Counter()  # drops clients without a place
            self._free += 1
            self._admit()

    def _crowded(self, caller: Caller, most: int | None, share: int | None) -> bool:
        others = [each for each in self._waiting if each is not caller]
        own = sum(each.client == caller.client for each in others)
        return (most is not None and len(others) >= most) or (share is not None and own >= share)

    def _admit(self) -> None:
        """Admits waiting callers to free places."""
        while self._free:
            able = [each for each in self._waiting if self._held[each.client] < self._each]
            if not able:
                return
            chosen = min(able, key=self._rank)
            self._waiting.remove(chosen)
            self._admitted.add(chosen)
            self._held[chosen.client] += 1
            self._free -= 1
            self._count += 1
            self._turns[chosen.client] = self._count
            self._turns.move_to_end(chosen.client)
            while len(self._turns) > MOST_REMEMBERED:
                self._turns.popitem(last=False)
            self._changed.notify_all()

    def _rank(self, caller: Caller) -> tuple[int, int]:
        """Returns the sort key of a waiting caller: the lowest is next, the first of equal ones."""
        return self._held[caller.client], self._turns.get(caller.client, 0)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
