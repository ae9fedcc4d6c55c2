"""instructor works unmodified: answers of a type, whole and in pieces, in conversations of several
turns.

Wrong answers go back with what was wrong.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import loops
import openai
import pydantic
import pytest
from serving import Server

instructor = pytest.importorskip("instructor", reason="`make client-test` installs it")

TEXT = "Extract the name and the age: Ann is 7 years old."
MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON", "RESPONSES_TOOLS", "ANTHROPIC_TOOLS")


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


def asking(mode: str) -> dict[str, Any]:
    bound = "max_output_tokens" if mode == "RESPONSES_TOOLS" else "max_tokens"
    # Anthropic's client has no temperature any more.
    greedy = {"temperature": 0}
    return {
        "model": "brook",
        bound: 60,
        **({"extra_body": greedy} if mode.startswith("ANTHROPIC") else greedy),
        "messages": [{"role": "user", "content": TEXT}],
    }


def client(server: Server, mode: str, asynchronous: bool = False) -> Any:
    options: Any = {"api_key": "unused", "max_retries": 0}
    if mode.startswith("ANTHROPIC"):
        kind = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
        raw: Any = kind(base_url=server.url, **options)
        return instructor.from_anthropic(raw, mode=instructor.Mode[mode])
    of_openai = openai.AsyncOpenAI if asynchronous else openai.OpenAI
    raw = of_openai(base_url=f"{server.url}/v1", **options)
    return instructor.from_openai(raw, mode=instructor.Mode[mode])


@pytest.mark.parametrize("mode", MODES)
def test_answer_is_parsed_into_a_type(server: Server, mode: str) -> None:
    asked = client(server, mode)
    whole = asked.create(response_model=Person, max_retries=0, **asking(mode))
    assert isinstance(whole, Person)
    growing = list(asked.create_partial(response_model=Person, max_retries=0, **asking(mode)))
    assert len(growing) > 1
    assert isinstance(growing[-1].name, str)


# In the mode JSON any object will do for the server. brook's second answer is one that uses all of
# its tokens, and instructor takes the finish reason `length` for an answer that was cut off.
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "JSON"])
def test_invalid_answer_is_retried_with_its_error(server: Server, mode: str) -> None:
    seen: list[int] = []

    class Thrice(Person):
        """A person."""

        @pydantic.field_validator("age")
        @classmethod
        def third(cls, age: int) -> int:
            seen.append(age)
            if len(seen) < 3:
                raise ValueError("the age must be another")
            return age

    answer = client(server, mode).create(response_model=Thrice, max_retries=3, **asking(mode))
    assert isinstance(answer, Thrice)
    assert len(seen) == 3


def test_json_mode_always_returns_an_object(server: Server) -> None:
    """Also those that use all of their tokens. The model decides whether it is of the type."""
    answers: list[Any] = []
    asked = client(server, "JSON")
    asked.on("completion:response", answers.append)

    class Never(Person):
        """A person."""

        @pydantic.field_validator("age")
        @classmethod
        def wrong(cls, age: int) -> int:
            raise ValueError("the age must be another")

    with pytest.raises(Exception, match=r"the age must be another|max_tokens"):
        asked.create(response_model=Never, max_retries=3, **asking("JSON"))
    assert len(answers) > 1
    assert all(isinstance(json.loads(a.choices[0].message.content), dict) for a in answers)


class GetWeather(pydantic.BaseModel):
    """Get the current weather."""

    city: str


class Add(pydantic.BaseModel):
    """Add two numbers."""

    a: int
    b: int


TOOLS = {"get_weather": GetWeather, "add": Add}


def with_result(mode: str, completion: Any, result: str) -> list[dict[str, Any]]:
    """The messages that continue a conversation after `completion`, a call of one tool."""
    if mode == "ANTHROPIC_TOOLS":
        content = [block.model_dump() for block in completion.content]
        (call,) = (block for block in content if block["type"] == "tool_use")
        answer = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
        return [{"role": "assistant", "content": content}, {"role": "user", "content": [answer]}]
    message = completion.choices[0].message
    (call,) = message.tool_calls
    answer = {"role": "tool", "tool_call_id": call.id, "content": result}
    return [message.model_dump(), answer]


# instructor's messages of the Responses API cannot hold calls.
@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "ANTHROPIC_TOOLS"])
def test_a_loop_of_several_turns(server: Server, mode: str) -> None:
    asked = client(server, mode)
    messages: list[dict[str, Any]] = []
    for question, name, arguments, _ in loops.TURNS:
        messages.append({"role": "user", "content": question})
        fields = {**asking(mode), "messages": messages}
        call, completion = asked.create_with_completion(
            response_model=TOOLS[name], max_retries=0, **fields
        )
        assert isinstance(call, TOOLS[name])
        if len(messages) == 1:
            assert call.model_dump() == arguments
        messages += with_result(mode, completion, loops.run(name, call.model_dump()))
        reply = asked.create(
            response_model=Person, max_retries=0, **{**asking(mode), "messages": messages}
        )
        assert isinstance(reply, Person)
        messages.append({"role": "assistant", "content": reply.model_dump_json()})


@pytest.mark.parametrize("mode", MODES)
def test_asyncio(server: Server, mode: str) -> None:
    async def ask() -> None:
        asked = client(server, mode, asynchronous=True)
        answers = (asked.create(response_model=Person, max_retries=0, **asking(mode)) for _ in "ab")
        first, second = await asyncio.gather(*answers)
        assert first.model_dump() == second.model_dump()
        stream = asked.create_partial(response_model=Person, max_retries=0, **asking(mode))
        assert [part async for part in stream]

    asyncio.run(ask())
