"""Progress without a terminal."""

from __future__ import annotations

from itertools import chain, repeat

import pytest
from penstock import progress


def test_lines_of_progress_have_an_interval(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = chain([0.0, 0.0, 9.9, 10.1, 20.0, 20.2], repeat(21.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.Bar("reading", 8, "files", unwatched=progress.Unwatched.LINES) as bar:
        for done in range(5):
            bar.at(done)
    expected = "reading: 0 of 8 files\nreading: 2 of 8 files, 30 s left\n"
    assert capsys.readouterr().err == expected + "reading: 4 of 8 files, 20 s left\n"
    progress.Bar("reading", 8, "files").at(1)
    assert not capsys.readouterr().err
