"""The worker's log. A line never fails a step and never holds one up, wherever stderr leads."""

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
    """Writes lines to a file descriptor that can be written now, and drops them where it cannot.

    `dropped` counts lines; the next line that comes through says how many were lost before it.
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
    """Sends what Python says to stderr: log lines, warnings, errors that end a thread."""
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
