"""Lets the driver's test import the package `tests.faults` wherever pytest is started."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
