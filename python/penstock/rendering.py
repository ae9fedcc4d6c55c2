"""`python -m penstock.rendering`: renders one chat template sent by a client.

A template is a program, so it runs in its own process, under limits of memory and CPU time; a stack
overflow ends only this process. The job comes on stdin, the reply goes to stdout; the router
defines both (`chat/template_sandbox.rs`).
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time

CPU_SECONDS = 2  # of rendering; up to one more, because the limit is in whole seconds
MEMORY_BYTES = 1 << 30  # of address space, the interpreter included
NICENESS = 10  # running streams have priority


def main() -> None:
    """Runs the job."""
    os.nice(NICENESS)
    from penstock._core import render_chat

    job = sys.stdin.buffer.read().decode()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seconds = math.ceil(time.process_time()) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    sys.stdout.buffer.write(render_chat(job).encode())


if __name__ == "__main__":
    main()
