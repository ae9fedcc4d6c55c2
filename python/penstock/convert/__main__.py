"""Converts a checkpoint: `python -m penstock.convert MODEL OUT`.

For the launcher (`penstock convert`). The report goes to stdout.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.convert.job import convert
from penstock.faults import Fault


def main() -> int:
    """The command line, for the launcher."""
    parser = argparse.ArgumentParser(prog="python -m penstock.convert", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    try:
        report = convert(arguments.model, arguments.out)
    except (Fault, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{report.text()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
