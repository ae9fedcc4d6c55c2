"""When a worker ends: its lease.

The launcher that starts a worker holds its lease by a pipe, the worker's standard input, which the
system closes however the launcher ends. Without it, the worker ends at once, so that no worker
outlives its launcher; or, if a router asked for that (`keep_seconds` of Load), it waits for another
router to attach, whose Load or Step stream holds the lease then.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

HANDOVER_SECONDS = 10.0  # from a Load to the Step stream of the same router


class Lease:
    """The lease of one worker. Thread-safe.

    `end` is called once, when nobody holds the lease any more. `orphaned` is called when the
    launcher is gone and the worker lives on.
    """

    def __init__(
        self, end: Callable[[], None], orphaned: Callable[[], None] = lambda: None
    ) -> None:
        self._end = end
        self._orphaned = orphaned
        self._changed = threading.Condition()
        self._holders = 0
        self._keep = 0.0
        self._until = 0.0  # on the monotonic clock: when the lease ends, if nobody holds it

    def keep(self, seconds: float) -> None:
        """Sets how long the worker lives without a launcher and a router."""
        with self._changed:
            self._keep = seconds
            self._changed.notify_all()

    def hold(self, handover: float = 0.0) -> Callable[[], None]:
        """Holds the lease for a router's call, and returns what ends that: to be called once. The
        lease lasts `handover` seconds longer, for the router's next call."""
        with self._changed:
            self._holders += 1

        def release() -> None:
            with self._changed:
                self._holders -= 1
                self._until = time.monotonic() + max(self._keep, handover)
                self._changed.notify_all()

        return release

    def watch(self, launcher: int) -> None:
        """Waits for the end of the pipe `launcher`, a file descriptor, then for the lease's end."""
        while os.read(launcher, 4096):
            pass
        with self._changed:
            if self._keep > 0:
                self._orphaned()
                self._until = max(self._until, time.monotonic() + self._keep)
                while (left := self._left()) > 0:
                    self._changed.wait(left)
        self._end()

    def _left(self) -> float:
        """Returns for how many seconds the lease lasts at least."""
        return 3600.0 if self._holders else self._until - time.monotonic()
