"""Progress bars on stderr; nothing is shown if it is neither a terminal nor a notebook."""

from __future__ import annotations

import sys
import time

WIDTH = 24
INTERVAL = 0.1


class Bar:
    """Shows `label`, progress, rate and remaining time on stderr, in place.

    label: the activity. total: the amount of work, in `unit`; 0 is unknown. Use as a context
    manager, which removes the line at the end.
    """

    def __init__(self, label: str, total: int, unit: str, shown: bool = True) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.shown = shown and _is_watched()
        self.started = time.monotonic()
        self.drawn = 0.0
        self.width = 0

    def at(self, done: int, note: str = "") -> None:
        """Updates the bar, and redraws it at most ten times per second."""
        now = time.monotonic()
        if self.shown and (now - self.drawn >= INTERVAL or done == self.total):
            self.drawn = now
            self._draw(self.line(done, now - self.started, note))

    def line(self, done: int, seconds: float, note: str) -> str:
        """Returns the text of the bar after `seconds`."""
        rate = done / max(seconds, 1e-3)
        filled = WIDTH * done // self.total if self.total else 0
        left = f", {(self.total - done) / rate:.0f} s left" if rate and done < self.total else ""
        bar = "=" * filled + " " * (WIDTH - filled)
        scale, unit = (1e6, "MB") if self.unit == "bytes" else (1, self.unit)
        counts = f"{done / scale:.0f}/{self.total / scale:.0f} {unit}"
        return f"{self.label} [{bar}] {counts}, {rate / scale:.1f} {unit}/s{left}{note}"

    def close(self) -> None:
        """Removes the line."""
        if self.width:
            self._draw("")
            self.width = 0

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
