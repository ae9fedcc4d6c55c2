"""Tools that clients run in conversations of several turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

WEATHER = {"temperature": 21, "sky": "sunny"}
# A question, the call that brook makes of it in a conversation's first turn, and what it then says.
# In later turns it has to be told which tool to call.
TURNS = [
    ("What is the weather in Paris?", "get_weather", {"city": "Paris"}, "21"),
    ("Add 12 and 30.", "add", {"a": 12, "b": 30}, "42"),
]
T = TypeVar("T")
# LangChain keeps connections for later calls, in other tests too: they belong to one event loop.
LOOP = asyncio.new_event_loop()


def complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it returns."""
    return LOOP.run_until_complete(coroutine)


def get_weather(city: str) -> str:
    """Get the current weather."""
    assert isinstance(city, str)
    return json.dumps(WEATHER)


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return json.dumps({"sum": a + b})


def run(name: str, arguments: dict[str, Any]) -> str:
    """What the tool of that name answers."""
    return {"get_weather": get_weather, "add": add}[name](**arguments)


def schema(**properties: str) -> dict[str, Any]:
    """Of an object with these properties, all required."""
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }


PARAMETERS = {"get_weather": schema(city="string"), "add": schema(a="integer", b="integer")}
DESCRIPTIONS = {"get_weather": "Get the current weather.", "add": "Add two numbers."}
# The same tools, as OpenAI's and as Anthropic's clients send them.
FUNCTIONS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "description": text, "parameters": PARAMETERS[name]},
    }
    for name, text in DESCRIPTIONS.items()
]
TOOLS: list[dict[str, Any]] = [
    {"name": name, "description": text, "input_schema": PARAMETERS[name]}
    for name, text in DESCRIPTIONS.items()
]


@pytest.fixture(params=[(kind, how) for kind in ("sync", "async") for how in ("whole", "stream")])
def how(request: pytest.FixtureRequest) -> Any:
    """How a client asks: with or without await, for whole answers or streams."""
    return {"asynchronous": request.param[0] == "async", "stream": request.param[1] == "stream"}
