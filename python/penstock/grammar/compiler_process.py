"""The worker's client of the compiler process. The process starts on first use."""

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

from penstock.grammar.protocol import CompilerUnavailable, GrammarSpec
from penstock.grammar.vocabulary import NoTokenizer

START_SECONDS = 60
MOST_REPLY = 64 << 20  # bytes
READY = 0  # the number of the first reply, which has no request
Reply = tuple[dict[str, Any], bytes]


class CompilationKilled(Exception):
    """The compilation was killed: by its limits, by `stop`, or with the whole process."""


@dataclass
class CompileRequest:
    """A running compilation. The reply raises CompilationKilled."""

    number: int
    reply: Future[Reply] = field(default_factory=Future)
    process: int | None = None  # the child that compiles it

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds used so far, as far as known."""
        try:
            stat = Path(f"/proc/{self.process}/stat").read_text()
        except OSError:
            return 0.0  # not started yet, or exited
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class CompilerProcess:
    """A handle of `penstock.grammar.compiler_main`, started on demand."""

    def __init__(self, tokenizer: Path, vocab: int) -> None:
        self._arguments = (str(tokenizer), str(vocab))
        self._writing = threading.Lock()  # also held during start-up
        self._run: _Run | None = None
        self._count = READY
        self._unusable: NoTokenizer | None = None  # the model's tokenizer; permanent
        self._closed = False

    def submit(self, spec: GrammarSpec) -> CompileRequest:
        """Starts a compilation. Raises NoTokenizer or CompilerUnavailable."""
        with self._writing:
            run = self._started()
            self._count += 1
            request = run.expect(self._count)
            text = {"kind": spec.kind.value, "text": spec.text, "complete": spec.complete}
            run.send({"number": request.number, **text})
        return request

    def stop(self, request: CompileRequest) -> None:
        """Stops a compilation; its reply arrives nevertheless."""
        with self._writing:
            if self._run is not None and not request.reply.done():
                self._run.send({"stop": request.number})

    def kill(self) -> None:
        """Kills the process. The next grammar starts another."""
        run, self._run = self._run, None
        if run is not None:
            run.process.kill()

    def close(self) -> None:
        """Kills the process permanently."""
        self._closed = True
        self.kill()

    def _started(self) -> _Run:
        if self._closed:
            raise CompilerUnavailable("the worker is shutting down")
        if self._unusable is not None:
            raise NoTokenizer(str(self._unusable))
        if self._run is not None and self._run.process.poll() is None:
            return self._run
        command = [sys.executable, "-m", "penstock.grammar.compiler_main", *self._arguments]
        run = _Run(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        ready = run.expect(READY)
        threading.Thread(target=run.read, name="grammars", daemon=True).start()
        try:
            head, _ = ready.reply.result(START_SECONDS)
        except (CompilationKilled, NotYet) as error:
            run.process.kill()
            raise CompilerUnavailable(
                "the process that compiles grammars does not start"
            ) from error
        if "unavailable" in head:
            self._unusable = NoTokenizer(head["unavailable"])
            raise NoTokenizer(head["unavailable"])
        self._run = run
        return run


class _Run:
    """One run of the process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._lock = threading.Lock()
        self._requests: dict[int, CompileRequest] = {}
        self._over = False

    def expect(self, number: int) -> CompileRequest:
        """Registers a request for the reply of this number."""
        request = CompileRequest(number)
        with self._lock:
            if self._over:
                request.reply.set_exception(CompilationKilled())
            else:
                self._requests[number] = request
        return request

    def send(self, message: dict[str, Any]) -> None:
        """Writes a request. If the process has exited, the reader of its replies notices that."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> None:
        """Completes requests with their replies until the process exits."""
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
                request = (
                    self._requests[head["number"]] if begun else self._requests.pop(head["number"])
                )
            if begun:
                request.process = head["process"]
            elif "ended" in head:
                request.reply.set_exception(CompilationKilled())
            else:
                request.reply.set_result((head, body))
        self.process.kill()
        self.process.wait()
        with self._lock:
            self._over, lost = True, list(self._requests.values())
        for request in lost:
            request.reply.set_exception(CompilationKilled())
