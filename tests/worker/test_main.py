"""How a worker's process begins; its end is tested with its lease."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.worker import __main__ as program
from penstock.worker.service import ShardService

ROOT = Path(__file__).parents[2]


def test_unusable_socket_path_ends_the_worker(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        program.serve(str(tmp_path / "nowhere/shard.sock"), ShardService(0, lambda: None))
    assert "cannot serve on" in str(ended.value) and "nowhere" in str(ended.value)


def test_log_of_an_orphaned_worker_goes_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "launcher").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        program.log_to_file(str(tmp_path / "log"))
        os.write(stderr.fileno(), b"later")
    assert (tmp_path / "log").read_text() == "later"
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0
    assert (tmp_path / "launcher").read_text() == ""


LOAD = """
import sys
from local import LocalWorker
from penstock.worker.__main__ import warm_imports
warm_imports()
before = set(sys.modules)
LocalWorker().load(sys.argv[1])
print(*sorted(set(sys.modules) - before))
"""


def test_a_worker_that_stands_by_has_imported_what_load_needs() -> None:
    """Except what depends on the model and the device."""
    paths = os.pathsep.join([str(ROOT / "tests/worker"), *sys.path])
    command = [sys.executable, "-c", LOAD, str(ROOT / "python/penstock/brook")]
    environment = os.environ | {"PYTHONPATH": paths}
    later = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    own = ("penstock.models.", "penstock.cpu", "penstock.quant.")
    assert [name for name in later.stdout.split() if not name.startswith(own)] == []


def test_a_worker_collects_garbage_once_all_is_imported() -> None:
    gc.disable()
    try:
        program.finish_imports()
        assert gc.isenabled() and gc.get_freeze_count() > 100_000
    finally:
        gc.enable()


def test_failed_warm_import_is_logged_and_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program.warm_imports()
    assert not caplog.records

    def fail(name: str) -> None:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(program.importlib, "import_module", fail)
    program.warm_imports()
    assert "import failed: no penstock.worker.startup.loader" in caplog.text
