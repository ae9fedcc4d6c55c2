"""LiteLLM's loop of several turns with tools, through each dialect it speaks, and its errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Server

litellm = pytest.importorskip("litellm", reason="`make client-test` installs it")

# A model by the dialect that LiteLLM speaks to its server, and the path that it adds its own to.
DIALECTS = {"openai/brook": "/v1", "hosted_vllm/brook": "/v1", "anthropic/brook": ""}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
        "cache_control": {"type": "ephemeral"},
    }
]


def ask(server: Server, model: str, messages: list[dict[str, Any]], **fields: Any) -> Any:
    base = server.url + DIALECTS[model]
    fields = {"max_tokens": 60, **fields}
    return litellm.completion(
        model=model, api_base=base, api_key="x", messages=messages, num_retries=0, **fields
    )


@pytest.mark.parametrize("model", DIALECTS)
def test_a_loop_with_tools(server: Server, model: str) -> None:
    """What was received is sent back as it is."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = ask(server, model, messages, tools=TOOLS, tool_choice="required")
    message = first.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    assert "city" in json.loads(call.function.arguments)
    messages.append(message.model_dump())
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "Sunny"})
    second = ask(server, model, messages, tools=TOOLS).choices[0].message
    assert second.content
    messages.append(second.model_dump())
    messages.append({"role": "user", "content": "And in Rome?"})
    chunks = ask(server, model, messages, tools=TOOLS, stream=True)
    assert any(chunk.choices[0].delta.content for chunk in chunks)


@pytest.mark.parametrize("model", DIALECTS)
@pytest.mark.parametrize("fields", [{"max_tokens": 100_000}, {"content": "word " * 5000}])
def test_context_overflow_raises_context_window_exceeded(
    server: Server, model: str, fields: dict[str, Any]
) -> None:
    messages = [{"role": "user", "content": fields.get("content", "hi")}]
    bound = {"max_tokens": fields.get("max_tokens", 5)}
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(server, model, messages, **bound)


def test_an_invalid_value_is_a_bad_request(server: Server) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        ask(server, "openai/brook", [{"role": "user", "content": "hi"}], temperature=-1)
