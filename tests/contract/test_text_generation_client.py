"""The `text-generation` client from PyPI works unmodified."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import loops
import pytest
from serving import Server

text_generation = pytest.importorskip("text_generation", reason="`make client-test` installs it")
from text_generation.errors import ValidationError  # noqa: E402

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    return text_generation.Client(server.url, timeout=60)


def test_generate(client: Any) -> None:
    answer = client.generate(PROMPT, max_new_tokens=8)
    assert answer.details.finish_reason == "length"
    assert answer.details.generated_tokens == 8
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text


def test_stream_adds_up_to_the_answer(client: Any) -> None:
    whole = client.generate(PROMPT, max_new_tokens=8).generated_text
    events = list(client.generate_stream(PROMPT, max_new_tokens=8))
    assert "".join(event.token.text for event in events) == whole
    assert events[-1].generated_text == whole
    assert events[-1].details.generated_tokens == 8


def test_sampling(client: Any) -> None:
    sampled = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 5}
    sampled |= {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "typical_p": 0.9}
    first, second = (
        client.generate(PROMPT, max_new_tokens=8, **sampled).generated_text for _ in range(2)
    )
    assert first == second
    full = client.generate(PROMPT, max_new_tokens=4, return_full_text=True, truncate=3)
    assert full.generated_text.startswith(PROMPT)


def test_errors_raise_the_clients_exceptions(client: Any) -> None:
    with pytest.raises(ValidationError, match="`max_new_tokens` must be strictly positive"):
        client.generate(PROMPT, max_new_tokens=0)


def test_a_loop_of_several_turns_with_tools(client: Any) -> None:
    """Its messages have no field for the call that a result answers: the order tells."""
    messages: list[Any] = []
    for question, name, arguments, said in loops.TURNS:
        first = not messages
        messages.append({"role": "user", "content": question})
        asked = {"messages": messages, "tools": loops.FUNCTIONS, "max_tokens": 60}
        answer = client.chat(**asked, tool_choice="auto" if first else name, temperature=0)
        message = answer.choices[0].message
        (call,) = message.tool_calls
        assert call["function"]["name"] == name
        given = json.loads(call["function"]["arguments"])
        assert not first or given == arguments
        result = {"role": "tool", "name": name, "content": loops.run(name, given)}
        messages += [message.model_dump(), result]
        message = client.chat(**{**asked, "messages": messages}, temperature=0).choices[0].message
        assert not first or said in message.content
        messages.append(message.model_dump())


def test_asyncio_and_grammars(server: Server) -> None:
    from text_generation.types import Grammar, GrammarType

    pattern = "[0-9]{3}-[a-f]{2}"
    grammars = [
        Grammar(type=GrammarType.Regex, value=pattern),
        Grammar(type=GrammarType.Json, value=loops.PARAMETERS["add"]),
    ]

    async def ask() -> None:
        client = text_generation.AsyncClient(server.url, timeout=60)
        for grammar in grammars:
            asked: Any = {"max_new_tokens": 60, "grammar": grammar}
            whole = (await client.generate(PROMPT, **asked)).generated_text
            stream = client.generate_stream(PROMPT, **asked)
            assert [event async for event in stream][-1].generated_text == whole
            if grammar.type == GrammarType.Regex:
                assert re.fullmatch(pattern, whole)
            else:
                assert json.loads(whole).keys() == {"a", "b"}

    asyncio.run(ask())


def test_chat(client: Any) -> None:
    answer = client.chat(
        messages=[{"role": "user", "content": "What is 12 + 30?"}], max_tokens=32, temperature=0
    )
    assert "42" in answer.choices[0].message.content
