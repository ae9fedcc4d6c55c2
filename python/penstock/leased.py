"""Runs a module that ends with the launcher: `python -m penstock.leased MODULE ARGUMENTS`.

The launcher holds the lease by a pipe, the standard input, which the system closes however the
launcher ends. Then SIGTERM ends the module.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

STDIN = 0


def end_with(launcher: int) -> None:
    """Waits for the end of the pipe `launcher`, a file descriptor, and ends the process."""
    while os.read(launcher, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Runs the module that the first argument names, with the other arguments."""
    # Ctrl-C reaches the whole foreground group, and the launcher passes it on.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=end_with, args=(STDIN,), name="lease", daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
