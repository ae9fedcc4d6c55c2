"""Tools that clients run in conversations of several turns."""

from __future__ import annotations

import json

WEATHER = {"temperature": 21, "sky": "sunny"}


def get_weather(city: str) -> str:
    """Get the current weather."""
    assert isinstance(city, str)
    return json.dumps(WEATHER)


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return json.dumps({"sum": a + b})
