"""`python -m penstock.rendering`: renders one chat template that a client sent.

A template is a program, so it runs in a process of its own: limits of memory and of processor time
end it, and so does a stack that overflows. The job comes on standard input, the reply goes to
standard output; the router knows both (`chat/template_sandbox.rs`).
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time

CPU_SECONDS = 2  # of rendering, and up to one more: the system counts whole seconds
MEMORY_BYTES = 1 << 30  # of address space, the interpreter included
NICENESS = 10  # running streams come first


def main() -> None:
    """Does the job."""
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
