"""The worker's log. Logging never fails or blocks a step, even if stderr is full or unread."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from types import TracebackType

PART = select.PIPE_BUF  # a pipe that can be written takes at least this much without waiting

log = logging.getLogger("penstock.worker")


class NonBlockingHandler(logging.Handler):
    """Writes lines to a file descriptor, and drops lines that it cannot write without blocking.

    `dropped` counts them; the next line that is written says how many were lost before it.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.dropped = 0
        self._reported = 0
        self._broken = False  # a line was cut: its rest was dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, under the handler's lock."""
        try:
            line = self.format(record)
        except Exception:
            self.dropped += 1
            return
        lost = self.dropped - self._reported
        if lost and self._write(f"WARNING {lost} lines of this log could not be written"):
            self._reported += lost
        if not self._write(line):
            self.dropped += 1

    def _write(self, line: str) -> bool:
        text = ("\n" if self._broken else "") + line + "\n"
        whole = text.encode(errors="replace")
        at = 0
        while at < len(whole):
            try:
                if not self._writable():
                    break
                at += os.write(self.descriptor, whole[at : at + PART])
            except OSError:
                break
        complete = at == len(whole)
        self._broken = not complete and (at > 0 or self._broken)
        return complete

    def _writable(self) -> bool:
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        return any(event & select.POLLOUT for _, event in poll.poll(0))


def start() -> None:
    """Routes Python's log lines, warnings and uncaught errors of threads to stderr."""
    logging.basicConfig(
        handlers=[NonBlockingHandler(sys.stderr.fileno())],
        level=logging.INFO,
        format="%(levelname)s %(message)s",
    )
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("the worker ends", exc_info=(kind, error, trace))


def _uncaught_in_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is SystemExit:
        return
    error = failed.exc_value or failed.exc_type()
    name = failed.thread.name if failed.thread else "unnamed"
    log.error("thread %s ended", name, exc_info=(failed.exc_type, error, failed.exc_traceback))
