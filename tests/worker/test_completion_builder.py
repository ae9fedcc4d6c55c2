"""Completions that Python's `LLM` builds from events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.engine import CompletionBuilder
from penstock.request import SamplingParams


def event(**fields: Any) -> Any:
    """An event of the engine, without text unless `fields` have some."""
    plain: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": [], "pieces": []}
    return SimpleNamespace(
        **{**plain, "prompt_logprobs": None, "finish_reason": None, "prompt_tokens": 1, **fields}
    )


def test_calls_keep_the_ids_that_the_model_wrote() -> None:
    builder = CompletionBuilder(SamplingParams())
    first = [("call", "f"), ("call_id", "functions.f:7"), ("arguments", '{"a"')]
    assert builder.add(event(pieces=first)) is None
    rest = [("arguments", ": 1}"), ("call", "g"), ("arguments", "{}")]
    done = builder.add(event(pieces=rest, finish_reason="stop"))
    assert done is not None
    assert [(call.name, call.arguments) for call in done.tool_calls] == [
        ("f", '{"a": 1}'),
        ("g", "{}"),
    ]
    assert done.tool_calls[0].id == "functions.f:7"
    assert len(done.tool_calls[1].id) == 9
    assert done.finish_reason == "tool_calls"
