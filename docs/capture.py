"""Draws a terminal session as an SVG: runs a command in a pseudo-terminal, types, keeps the screen.

    python docs/capture.py docs/chat.svg --type "What is 17 + 25?" -- penstock chat

The picture in README.md was made by this script from the real program.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import sys
import textwrap
import time
from html import escape
from pathlib import Path

COLUMNS, QUIET_SECONDS, LIMIT_SECONDS = 100, 3.0, 90.0
TO_COLUMN = re.compile(r"\r\x1b\[\d+C")  # how line editors put the cursor behind their prompt
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07|\x07")


def read_until_quiet(terminal: int) -> str:
    """What the program prints until it has been quiet for a while or ends."""
    text, deadline, quiet = b"", time.monotonic() + LIMIT_SECONDS, 0.0
    while time.monotonic() < deadline and (quiet < QUIET_SECONDS or not text):
        ready, _, _ = select.select([terminal], [], [], 0.1)
        if not ready:
            quiet += 0.1
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        text, quiet = text + piece, 0.0
    return text.decode(errors="replace")


def session(command: list[str], lines: list[str]) -> str:
    """Everything on the terminal while `lines` are typed, each once the program is quiet."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(COLUMNS=str(COLUMNS), LINES="40", TERM="xterm")
        os.execvp(command[0], command)
    text = read_until_quiet(terminal)
    for line in lines:
        os.write(terminal, line.encode() + b"\r")
        text += read_until_quiet(terminal)
    os.close(terminal)
    return text


def screen(text: str) -> list[str]:
    """The lines that a person is left with: escapes gone, carriage returns applied.

    A terminal would break long lines anywhere; they break between words, which reads better.
    """
    rows: list[str] = []
    for line in ESCAPES.sub("", TO_COLUMN.sub("", text)).replace("\r\n", "\n").split("\n"):
        # What was last written from the left edge on stands.
        kept = line.rstrip("\r").rsplit("\r", 1)[-1].rstrip()
        rows += textwrap.wrap(kept, COLUMNS) or [""]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def svg(rows: list[str]) -> str:
    width, height = COLUMNS * 8.4 + 32, len(rows) * 19 + 52
    body = "\n".join(
        f'<text x="16" y="{52 + 19 * i}" xml:space="preserve">{escape(row)}</text>'
        for i, row in enumerate(rows)
    )
    dots = "".join(
        f'<circle cx="{20 + 18 * i}" cy="18" r="6" fill="{colour}"/>'
        for i, colour in enumerate(("#e06c75", "#e5c07b", "#98c379"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}">'
        f'<rect width="100%" height="100%" rx="8" fill="#1e222a"/>{dots}'
        f'<g font-family="ui-monospace, Menlo, DejaVu Sans Mono, monospace" font-size="14" '
        f'fill="#d7dae0">\n{body}\n</g></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--type", action="append", default=[], metavar="LINE")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    rows = screen(f"$ {' '.join(args.command)}\r\n" + session(args.command, args.type))
    args.picture.write_text(svg(rows))
    sys.stdout.write("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
