"""`python -m penstock.guidance.helper TOKENIZER VOCAB`: compiles guides until its input ends.

A process of its own, so that a text made to be expensive can be given up: it has limits of memory
and of processor time, which end it, and the worker starts another. A request is a line of JSON; a
reply is a line of JSON, followed by as many bytes as its `bytes` says.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

from penstock.faults import Fault
from penstock.guidance.automaton import Automaton
from penstock.guidance.compile import Compiler
from penstock.guidance.earley import Tokens
from penstock.guidance.protocol import Kind, Wanted
from penstock.guidance.vocabulary import load_tokenizer, read_vocabulary

CPU_SECONDS = 4  # of one compilation, and up to one more: the system counts whole seconds
MEMORY_BYTES = 3 << 30  # of address space, interpreter and vocabulary included
NICENESS = 10  # running streams come first


def main() -> None:
    """Serves standard input."""
    os.nice(NICENESS)
    path, vocab = Path(sys.argv[1]), int(sys.argv[2])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        tokenizer = load_tokenizer(path, vocab)
        compiler = Compiler(Tokens(tokenizer, read_vocabulary(tokenizer, vocab)))
    except Fault as error:
        _reply(out, {"unavailable": str(error)})
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _reply(out, {"ready": True})
    for line in sys.stdin.buffer:
        _limit_time()
        _reply(out, *_compiled(compiler, json.loads(line)))


def _limit_time() -> None:
    used = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_SECONDS, resource.RLIM_INFINITY))


def _compiled(compiler: Compiler, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    wanted = Wanted(Kind(asked["kind"]), asked["text"], asked["complete"])
    try:
        made = compiler.compile(wanted)
    except Fault as error:
        return {"refused": str(error)}, b""
    except (MemoryError, RecursionError) as error:
        return {"costly": f"the guide is too large to compile ({type(error).__name__})"}, b""
    except Exception as error:  # a library's own complaint about the text
        return {"refused": f"the guide cannot be compiled: {error}"[:400]}, b""
    if isinstance(made, Automaton):
        return {"states": len(made.cost)}, made.to_bytes()
    growth = None if made.growth is None else astuple(made.growth)
    return {"grammar": made.text, "growth": growth, "shortest": made.shortest}, b""


def _reply(out: Any, head: dict[str, Any], body: bytes = b"") -> None:
    out.write(json.dumps({**head, "bytes": len(body)}).encode() + b"\n" + body)
    out.flush()


if __name__ == "__main__":
    main()
