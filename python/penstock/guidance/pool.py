"""The processes that compile, seen from the worker: started when needed, killed when too slow."""

from __future__ import annotations

import contextlib
import json
import queue
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.guidance.automaton import Automaton
from penstock.guidance.earley import Grammar, Growth
from penstock.guidance.protocol import Refused, TooCostly, Unavailable, Wanted
from penstock.guidance.vocabulary import NoTokenizer

HELPERS = 2  # compile side by side
COMPILE_SECONDS = 15  # of waiting for one guide; the helper itself allows less processor time
START_SECONDS = 60
MOST_REPLY = 64 << 20  # bytes


class _Ended(Exception):
    """The process is gone, or has been killed for being late."""


@dataclass
class _Helper:
    """One process, or none yet."""

    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None
    kept: bytearray = field(default_factory=bytearray)

    def ask(self, wanted: Wanted) -> tuple[dict[str, Any], bytes]:
        """Raises _Ended, NoTokenizer or Unavailable."""
        process = self._started()
        asked = {"kind": wanted.kind.value, "text": wanted.text, "complete": wanted.complete}
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            self.end()
            raise _Ended from error
        return self._reply(COMPILE_SECONDS)

    def end(self) -> None:
        """Kills the process."""
        process, self.process = self.process, None
        self.kept.clear()
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        self.end()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.guidance.helper", *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        try:
            head, _ = self._reply(START_SECONDS)
        except _Ended as error:
            raise Unavailable("the process that compiles grammars does not start") from error
        if "unavailable" in head:
            self.end()
            raise NoTokenizer(head["unavailable"])
        return self.process

    def _reply(self, seconds: float) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + seconds
        try:
            head = json.loads(self._until(deadline, lambda: self.kept.find(b"\n") + 1))
            size = int(head["bytes"])
            if not 0 <= size <= MOST_REPLY:
                raise _Ended
            body = self._until(deadline, lambda: size * (len(self.kept) >= size)) if size else b""
        except BaseException:
            self.end()
            raise
        return head, body

    def _until(self, deadline: float, length: Any) -> bytes:
        """Reads until `length()` bytes are wanted and there; takes them."""
        assert self.process is not None and self.process.stdout is not None
        while not (wanted := length()):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise _Ended
            data = self.process.stdout.read(1 << 20)
            if not data:
                raise _Ended
            self.kept += data
        taken = bytes(self.kept[:wanted])
        del self.kept[:wanted]
        return taken


class Pool:
    """A few helpers; calls wait for a free one."""

    def __init__(self, tokenizer: Path, vocab: int) -> None:
        self._free: queue.LifoQueue[_Helper] = queue.LifoQueue()
        for _ in range(HELPERS):
            self._free.put(_Helper((str(tokenizer), str(vocab))))

    def compile(self, wanted: Wanted) -> Automaton | Grammar:
        """Raises Refused, also for what takes too long or too much memory."""
        helper = self._free.get()
        try:
            head, body = helper.ask(wanted)
        except _Ended as error:
            raise TooCostly(
                f"the {wanted.kind.value} takes too much time or memory to compile; make it simpler"
            ) from error
        finally:
            self._free.put(helper)
        if "costly" in head:
            raise TooCostly(head["costly"])
        if "refused" in head:
            raise Refused(head["refused"])
        if "grammar" in head:
            growth = None if head["growth"] is None else Growth(*head["growth"])
            return Grammar(head["grammar"], growth, head["shortest"])
        return Automaton.from_bytes(head["states"], body)

    def close(self) -> None:
        """Ends the processes that are free."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._free.get_nowait().end()
