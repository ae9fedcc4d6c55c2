"""`python -m penstock.grammar.compiler_main TOKENIZER VOCAB`: compiles grammars until stdin closes.

It is a separate process so that an expensive grammar can be killed. It loads the tokenizer, then
forks for every grammar: a child inherits the vocabulary, has its own limits of memory and CPU time,
and can be killed without other cost. Requests are lines of JSON. A reply is a line of JSON followed
by `bytes` bytes. A line with the `process` that compiles comes before the reply proper.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import sys
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NoReturn

from penstock.faults import Fault
from penstock.grammar.automaton import Automaton
from penstock.grammar.compile import Compiler
from penstock.grammar.protocol import GrammarKind, GrammarSpec
from penstock.grammar.vocabulary import Vocabulary

CPU_SECONDS = 4  # of one compilation
MEMORY_BYTES = 3 << 30  # of address space, interpreter and vocabulary included
NICENESS = 10  # running streams have priority
STDIN = 0


def main() -> None:
    """Serves requests on stdin."""
    os.nice(NICENESS)
    path, vocab = Path(sys.argv[1]), int(sys.argv[2])
    out = os.dup(1)
    os.dup2(2, 1)  # keeps a library's output out of the replies
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        compiler = Compiler(Vocabulary(path, vocab))
        _ = compiler.vocabulary.texts  # loaded once, for all children
    except Fault as error:
        _reply(out, {"unavailable": str(error), "number": 0})
        return
    gc.freeze()  # keeps these pages shared: the collector does not write to them
    server = Server(compiler, out)
    try:
        _reply(out, {"number": 0})
        server.run()
    except BrokenPipeError:  # the worker has ended
        pass
    finally:
        server.kill()


@dataclass(frozen=True)
class Child:
    """A child process that compiles one grammar, and the file for its reply."""

    number: int
    process: int
    file: int


class Server:
    """Starts children, forwards their replies, and kills them on request."""

    def __init__(self, compiler: Compiler, out: int) -> None:
        self.compiler = compiler
        self.out = out
        self.children: dict[int, Child] = {}  # by pidfd, which is ready when the child has exited
        self.poll = select.poll()

    def run(self) -> None:
        """Returns after stdin closes."""
        self.poll.register(STDIN, select.POLLIN)
        kept = b""
        while True:
            for ready, _ in self.poll.poll():
                if ready != STDIN:
                    self._finish(ready)
                    continue
                data = os.read(STDIN, 1 << 20)
                if not data:
                    return
                *lines, kept = (kept + data).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))

    def _handle(self, request: dict[str, Any]) -> None:
        if "stop" in request:
            self.kill(request["stop"])
            return
        file = os.memfd_create("grammar")
        process = os.fork()
        if process == 0:
            self._compile(request, file)
        descriptor = os.pidfd_open(process)
        self.children[descriptor] = Child(request["number"], process, file)
        self.poll.register(descriptor, select.POLLIN)
        _reply(self.out, {"number": request["number"], "process": process})

    def _compile(self, request: dict[str, Any], file: int) -> NoReturn:
        """Compiles in a child."""
        os.close(STDIN)
        os.close(self.out)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
        status = 1
        try:
            _reply(file, *_compiled(self.compiler, request))
            status = 0
        finally:
            os._exit(status)

    def _finish(self, descriptor: int) -> None:
        child = self.children.pop(descriptor)
        self.poll.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(child.process, 0)
        with os.fdopen(child.file, "rb") as file:
            file.seek(0)
            # A killed child may have written half a reply.
            head, body = (
                ({"ended": True}, b"") if status else (json.loads(file.readline()), file.read())
            )
        _reply(self.out, {**head, "number": child.number}, body)

    def kill(self, number: int | None = None) -> None:
        """Kills the child of a request, or all children."""
        for child in self.children.values():
            if number in (None, child.number):
                os.kill(child.process, signal.SIGKILL)


def _compiled(compiler: Compiler, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    spec = GrammarSpec(GrammarKind(request["kind"]), request["text"], request["complete"])
    try:
        made = compiler.compile(spec)
    except Fault as error:
        return {"refused": str(error)}, b""
    except (MemoryError, RecursionError) as error:
        return {"costly": f"the grammar is too large to compile ({type(error).__name__})"}, b""
    except Exception as error:  # a library's error about the text
        return {"refused": f"the grammar cannot be compiled: {error}"[:400]}, b""
    if isinstance(made, Automaton):
        return {"states": len(made.cost)}, made.to_bytes()
    growth = None if made.growth is None else astuple(made.growth)
    return {"grammar": made.text, "growth": growth}, b""


def _reply(out: int, head: dict[str, Any], body: bytes = b"") -> None:
    data = memoryview(json.dumps({**head, "bytes": len(body)}).encode() + b"\n" + body)
    while data:
        data = data[os.write(out, data) :]


if __name__ == "__main__":
    main()
