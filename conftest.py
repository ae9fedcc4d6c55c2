"""For all Python tests: how many threads compute, when garbage is collected, and which files begin
first."""

from __future__ import annotations

import gc
import os

import pytest

# Before torch is imported. Matrices of tests are tiny, and tests run side by side: with a thread
# per core, threads mostly waited for each other, and tests of families took twice the CPU time.
# Workers have a setting of their own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Imports and the list of tests are millions of objects that live to the end. To look through them
# again and again for garbage took a tenth of all tests' CPU time, and a fifth of the imports'.
gc.disable()

# Files, or how their paths begin, longest first: so no process is left alone with one at the end.
LONG = (
    "kernels/tests/test_compiled_portable.py",
    "tests/faults/",
    "kernels/tests/test_compiled_hopper.py",
    "kernels/tests/test_interpreter.py",
    "tests/parity/test_families.py",
    "tests/e2e/",
    "tests/contract/test_openapi",
    "tests/worker/",
    "tests/parity/",
)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else Triton's library warns of what outlives the process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order in which `make python-test` gives the files to its processes."""

    def place(item: pytest.Item) -> int:
        return next((n for n, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG))

    items.sort(key=place)
