"""The command `penstock`: the launcher, in this process."""

from __future__ import annotations

import signal
import sys
from pathlib import Path


def main() -> int:
    """Runs the launcher with this process's arguments and returns its exit code."""
    from penstock import _core

    # Python's handler only sets a flag, which the interpreter does not check during the Rust call.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.main(["penstock", *sys.argv[1:]], sys.executable, str(Path(__file__).parent))


if __name__ == "__main__":
    sys.exit(main())
