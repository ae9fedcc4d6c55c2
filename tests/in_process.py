"""How tests open the engine in their own process."""

from __future__ import annotations

from penstock import SamplingParams

GREEDY = SamplingParams(max_tokens=12, temperature=0)
OPTIONS = {"device": "cpu", "threads": 1, "dtype": "float32", "progress": False}
