"""The worker's log where nobody reads it."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from penstock.worker import logs
from penstock.worker.logs import PART, NonBlockingHandler


class Pipe(NamedTuple):
    read: int
    write: int


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = Pipe(*os.pipe())
    fcntl.fcntl(ends.write, fcntl.F_SETPIPE_SZ, 2 * PART)
    yield ends
    for end in ends:
        os.close(end)


def logger(descriptor: int) -> tuple[logging.Logger, NonBlockingHandler]:
    handler = NonBlockingHandler(descriptor)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    return log, handler


def test_full_log_pipe_does_not_block(pipe: Pipe) -> None:
    log, lines = logger(pipe.write)
    for _ in range(5):
        log.info("x" * (PART - 6))
    assert lines.dropped == 3
    os.read(pipe.read, 2 * PART)
    log.info("again")
    said = os.read(pipe.read, 2 * PART).decode()
    assert said == "WARNING 3 lines of this log could not be written\nINFO again\n"
    log.info("once")
    assert os.read(pipe.read, 2 * PART) == b"INFO once\n"


def test_truncated_log_line_ends_before_the_next(pipe: Pipe) -> None:
    log, lines = logger(pipe.write)
    log.info("x" * 3 * PART)
    assert lines.dropped == 1
    os.read(pipe.read, 2 * PART)
    log.info("y")
    said = os.read(pipe.read, 2 * PART).decode().splitlines()
    assert said == ["", "WARNING 1 lines of this log could not be written", "INFO y"]


def test_log_write_error_is_counted_and_not_raised(capfd: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "wb") as full:
        log, lines = logger(full.fileno())
        log.info("a")
        log.info("%d", "no number")
    assert lines.dropped == 2
    assert capfd.readouterr().err == ""


def test_system_exit_in_a_thread_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    for error, name in ((SystemExit(1), "gone"), (ValueError("bad"), "odd")):
        thread = threading.Thread(name=name)
        logs._uncaught_in_thread(threading.ExceptHookArgs((type(error), error, None, thread)))
    logs._uncaught_in_thread(threading.ExceptHookArgs((KeyError, None, None, None)))
    result = [record.getMessage() for record in caplog.records]
    assert result == ["thread odd ended", "thread unnamed ended"]


def test_thread_errors_and_warnings_are_logged() -> None:
    program = """
import threading, warnings
from penstock.worker import logs
logs.start()
warnings.warn("mind")
thread = threading.Thread(target=lambda: 1 / 0, name="odd")
thread.start(); thread.join()
raise KeyError("last")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("WARNING ") and lines[0].endswith("UserWarning: mind")
    assert "ERROR thread odd ended" in lines and "ZeroDivisionError: division by zero" in lines
    assert "CRITICAL the worker ends" in lines and lines[-1] == "KeyError: 'last'"
