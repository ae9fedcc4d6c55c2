"""The process that compiles, seen from the worker: started when needed, asked by many threads."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.guidance.protocol import Unavailable, Wanted
from penstock.guidance.vocabulary import NoTokenizer

START_SECONDS = 60
MOST_REPLY = 64 << 20  # bytes
READY = 0  # the number of the first reply, which nobody asked for
Reply = tuple[dict[str, Any], bytes]


class Ended(Exception):
    """The compilation was killed: by its limits, by `stop`, or with the whole process."""


@dataclass
class Asked:
    """A guide that is being compiled. The reply raises Ended."""

    number: int
    reply: Future[Reply] = field(default_factory=Future)
    process: int | None = None  # which compiles it

    def used(self) -> float:
        """Seconds of processor time that it has had, as far as is known."""
        try:
            stat = Path(f"/proc/{self.process}/stat").read_text()
        except OSError:
            return 0.0  # it has not begun, or has ended
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Process:
    """`penstock.guidance.helper`, or none yet."""

    def __init__(self, tokenizer: Path, vocab: int) -> None:
        self._arguments = (str(tokenizer), str(vocab))
        self._writing = threading.Lock()  # held while it starts, too
        self._run: _Run | None = None
        self._count = READY
        self._unusable: NoTokenizer | None = None  # the model's tokenizer, for good
        self._closed = False

    def ask(self, wanted: Wanted) -> Asked:
        """Begins to compile a guide. Raises NoTokenizer or Unavailable."""
        with self._writing:
            run = self._started()
            self._count += 1
            asked = run.expect(self._count)
            text = {"kind": wanted.kind.value, "text": wanted.text, "complete": wanted.complete}
            run.send({"number": asked.number, **text})
        return asked

    def stop(self, asked: Asked) -> None:
        """Gives a guide up; its reply comes nevertheless."""
        with self._writing:
            if self._run is not None and not asked.reply.done():
                self._run.send({"stop": asked.number})

    def kill(self) -> None:
        """Ends the process. The next guide starts another."""
        run, self._run = self._run, None
        if run is not None:
            run.process.kill()

    def close(self) -> None:
        """Ends the process, for good."""
        self._closed = True
        self.kill()

    def _started(self) -> _Run:
        if self._closed:
            raise Unavailable("the worker is being ended")
        if self._unusable is not None:
            raise NoTokenizer(str(self._unusable))
        if self._run is not None and self._run.process.poll() is None:
            return self._run
        command = [sys.executable, "-m", "penstock.guidance.helper", *self._arguments]
        run = _Run(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        ready = run.expect(READY)
        threading.Thread(target=run.read, name="guides", daemon=True).start()
        try:
            head, _ = ready.reply.result(START_SECONDS)
        except (Ended, NotYet) as error:
            run.process.kill()
            raise Unavailable("the process that compiles grammars does not start") from error
        if "unavailable" in head:
            self._unusable = NoTokenizer(head["unavailable"])
            raise NoTokenizer(head["unavailable"])
        self._run = run
        return run


class _Run:
    """One life of the process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._lock = threading.Lock()
        self._asked: dict[int, Asked] = {}
        self._over = False

    def expect(self, number: int) -> Asked:
        """Whom the reply of this number is for."""
        asked = Asked(number)
        with self._lock:
            if self._over:
                asked.reply.set_exception(Ended())
            else:
                self._asked[number] = asked
        return asked

    def send(self, message: dict[str, Any]) -> None:
        """Writes a request. Where the process has ended, whoever reads its replies sees that."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> None:
        """Hands replies to those who wait for them, until the process has ended."""
        assert self.process.stdout is not None
        replies = self.process.stdout
        while line := replies.readline():
            head = json.loads(line)
            if not 0 <= head["bytes"] <= MOST_REPLY:
                break
            body = replies.read(head["bytes"])
            if len(body) < head["bytes"]:
                break
            with self._lock:
                begun = "process" in head
                asked = self._asked[head["number"]] if begun else self._asked.pop(head["number"])
            if begun:
                asked.process = head["process"]
            elif "ended" in head:
                asked.reply.set_exception(Ended())
            else:
                asked.reply.set_result((head, body))
        self.process.kill()
        self.process.wait()
        with self._lock:
            self._over, lost = True, list(self._asked.values())
        for asked in lost:
            asked.reply.set_exception(Ended())
