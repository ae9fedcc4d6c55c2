"""The benchmarks' modules are scripts beside each other, not a package."""

from __future__ import annotations

import sys
from pathlib import Path

# Last, so that no module of the tests is hidden by a benchmark of the same name.
sys.path.append(str(Path(__file__).parents[2] / "bench"))
