"""LangChain's `ChatOpenAI` works unmodified."""

from __future__ import annotations

import asyncio
from typing import Any

import jsonschema
import loops
import openai
import pydantic
import pytest
from serving import Server

langchain_openai = pytest.importorskip("langchain_openai", reason="`make client-test` installs it")

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


def get_weather(city: str) -> str:
    """Get the current weather."""
    return city


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


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


def test_usage_logprobs_and_asyncio(model: Any) -> None:
    chunks = list(model.bind(stream_usage=True).stream(QUESTION))
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage[-1]["output_tokens"] > 0
    reported = model.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    content = reported.response_metadata["logprobs"]["content"]
    assert all(len(token["top_logprobs"]) == 2 for token in content)

    async def several() -> list[str]:
        answers = await asyncio.gather(*(model.ainvoke(QUESTION) for _ in range(3)))
        pieces = [chunk.content async for chunk in model.astream(QUESTION)]
        return [*(answer.content for answer in answers), "".join(pieces)]

    assert set(loops.complete(several())) == {reported.content}


def test_errors(model: Any) -> None:
    # It calls max_tokens by the newer name.
    for name, field in (("temperature", "temperature"), ("max_tokens", "max_completion_tokens")):
        with pytest.raises(openai.BadRequestError) as caught:
            model.bind(**{name: -1}).invoke(QUESTION)
        assert caught.value.param == field
        with pytest.raises(openai.BadRequestError):
            list(model.bind(**{name: -1}).stream(QUESTION))


def test_streams_of_structured_output(model: Any) -> None:
    schema = {
        "title": "person",
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    asked = model.with_structured_output(schema, method="json_schema")
    text = "Extract the name and the age: Ann is 7 years old."
    growing = list(asked.stream(text))
    assert growing[-1] == asked.invoke(text)
    jsonschema.validate(growing[-1], schema)


def test_streams_of_tools(model: Any) -> None:
    bound = model.bind_tools([get_weather, add])
    chunks = list(bound.stream("What is the weather in Paris?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    # The arguments came in pieces, and the answer to the call is understood.
    assert sum(bool(chunk.tool_call_chunks) for chunk in chunks) > 1
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    question = {"role": "user", "content": "What is the weather in Paris?"}
    assert bound.invoke([question, whole, result]).content


def test_tools(model: Any) -> None:
    answer = model.bind_tools([get_weather, add]).invoke("What is the weather in Paris?")
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})


def test_a_tool_that_must_be_called(model: Any) -> None:
    for choice in ("any", "get_weather", True):
        (call,) = (
            model.bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
            .invoke("Tell me a story about a fox.")
            .tool_calls
        )
        assert call["name"] == "get_weather"
        assert isinstance(call["args"]["city"], str)


def test_the_responses_api(model: Any) -> None:
    model = model.model_copy(update={"use_responses_api": True})
    answer = model.invoke(QUESTION)
    assert "42" in answer.text
    assert answer.usage_metadata["output_tokens"] > 0
    pieces = [chunk.text for chunk in model.stream(QUESTION)]
    assert "".join(pieces) == answer.text
    assert len(pieces) > 2
    assert "9" in model.invoke([("user", QUESTION), answer, ("user", "What is 5 + 4?")]).text
    bound = model.bind_tools([get_weather, add])
    question = ("user", "What is the weather in Paris?")
    reported = bound.invoke([question])
    (call,) = reported.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    sky = '{"temperature": 21, "sky": "sunny"}'
    result = {"role": "tool", "tool_call_id": call["id"], "content": sky}
    assert "21" in bound.invoke([question, reported, result]).text


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_structured_output(model: Any, method: str) -> None:
    class Person(pydantic.BaseModel):
        """A person."""

        name: str
        age: int

    asked = model.with_structured_output(Person, method=method)
    found = asked.invoke("Extract the name and the age: Ann is 7 years old.")
    assert isinstance(found, Person)
