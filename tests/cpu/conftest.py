"""The kernels' tests compare ops; the CPU backend is compared by the same functions."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/tests"))
