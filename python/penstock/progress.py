"""Progress bars on stderr; if it is neither a terminal nor a notebook, lines or nothing."""

from __future__ import annotations

import math
import sys
import time
from enum import Enum

WIDTH = 24
INTERVAL = 0.1
LINE_INTERVAL = 10.0  # as the launcher's


class Unwatched(Enum):
    """What a bar shows if stderr is neither a terminal nor a notebook."""

    NOTHING = "nothing"
    LINES = "lines"
    """A line at the beginning, and one each `LINE_INTERVAL` seconds at most."""


class Bar:
    """Shows `label`, progress, rate and remaining time on stderr, in place.

    label: the activity. total: the amount of work, in `unit`; 0 is unknown. Use as a context
    manager, which removes the line at the end.
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str,
        shown: bool = True,
        unwatched: Unwatched = Unwatched.NOTHING,
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.shown = shown and _is_watched()
        self.lines = shown and not self.shown and unwatched is Unwatched.LINES
        self.started = time.monotonic()
        self.drawn = -math.inf
        self.width = 0

    def at(self, done: int, note: str = "") -> None:
        """Updates the bar, and redraws it at most ten times per second."""
        now = time.monotonic()
        if self.shown and (now - self.drawn >= INTERVAL or done == self.total):
            self.drawn = now
            self._draw(self.line(done, now - self.started, note))
        elif self.lines and now - self.drawn >= LINE_INTERVAL:
            self.drawn = now
            sys.stderr.write(self.plain(done, now - self.started, note) + "\n")
            sys.stderr.flush()

    def line(self, done: int, seconds: float, note: str) -> str:
        """Returns the text of the bar after `seconds`."""
        rate = done / max(seconds, 1e-3)
        filled = WIDTH * done // self.total if self.total else 0
        bar = "=" * filled + " " * (WIDTH - filled)
        scale, unit = (1e6, "MB") if self.unit == "bytes" else (1, self.unit)
        counts = f"{done / scale:.0f}/{self.total / scale:.0f} {unit}"
        speed = f"{rate / scale:.1f} {unit}/s"
        return f"{self.label} [{bar}] {counts}, {speed}{self._left(done, seconds)}{note}"

    def plain(self, done: int, seconds: float, note: str) -> str:
        """Returns the text of a line for a log after `seconds`."""
        counts = f"{done} of {self.total} {self.unit}"
        return f"{self.label}: {counts}{self._left(done, seconds)}{note}"

    def close(self) -> None:
        """Removes the line."""
        if self.width:
            self._draw("")
            self.width = 0

    def _left(self, done: int, seconds: float) -> str:
        if not 0 < done < self.total:
            return ""
        return f", {(self.total - done) * seconds / done:.0f} s left"

    def _draw(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self.width) + ("" if line else "\r"))
        sys.stderr.flush()
        self.width = len(line)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Phases:
    """The progress bars of a loading engine, one per phase."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.phase = ""
        self.bar: Bar | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Updates the bar of `phase`; `total` is 0 if unknown."""
        if not total:
            return
        if self.bar is None or phase != self.phase:
            self.close()
            unit = "bytes" if phase == "weights" else "steps"
            self.phase, self.bar = phase, Bar(f"loading {phase}", total, unit, self.shown)
        self.bar.at(done)

    def close(self) -> None:
        """Removes the bar."""
        if self.bar is not None:
            self.bar.close()


def _is_watched() -> bool:
    # A notebook's stderr is no terminal but shows a line that is redrawn in place.
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
