"""LangChain's `ChatOpenAI` works unmodified."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Server

langchain_openai = pytest.importorskip("langchain_openai", reason="needs the extra `clients`")

QUESTION = "What is 12 + 30?"


@pytest.fixture(scope="module")
def model(server: Server) -> Any:
    return langchain_openai.ChatOpenAI(
        model="brook",
        base_url=f"{server.url}/v1",
        api_key="unused",
        temperature=0,
        max_tokens=48,
        max_retries=0,
    )


def test_invoke_and_stream(model: Any) -> None:
    answer = model.invoke(QUESTION)
    assert "42" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    pieces = [chunk.content for chunk in model.stream(QUESTION)]
    assert "".join(pieces) == answer.content
    assert len(pieces) > 2


def test_a_conversation(model: Any) -> None:
    messages = [("system", "You are brook."), ("user", QUESTION)]
    assert "42" in model.invoke(messages).content
    assert len(model.batch([QUESTION, QUESTION])) == 2


def test_tools(model: Any) -> None:
    def get_weather(city: str) -> str:
        """Get the current weather."""
        return city

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    answer = model.bind_tools([get_weather, add]).invoke("What is the weather in Paris?")
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
