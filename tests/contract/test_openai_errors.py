"""Refusals reach users of the official client as its exceptions, with the field."""

from __future__ import annotations

import asyncio

import openai
import pytest
from serving import Server

QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
# Keyword arguments that are wrong, and the field that is to be named.
WRONG = {
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "temperature": ({"temperature": -1.0}, "temperature"),
    "top_p": ({"top_p": 2.0}, "top_p"),
    "stop": ({"stop": ["a"] * 17}, "stop"),
    "seed": ({"seed": "x"}, "seed"),
    "unknown field": ({"extra_body": {"colour": 1}}, "colour"),
    "role": ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages"),
    "content": ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    "stream_options": ({"extra_body": {"stream_options": {}}}, "stream_options"),
}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_fields(client: openai.OpenAI, name: str, stream: bool) -> None:
    wrong, field = WRONG[name]
    if name == "stream_options" and stream:
        wrong = {"extra_body": {"stream_options": 5}}
    asked = {"model": "brook", "messages": QUESTION, "stream": stream, **wrong}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.param is not None
    assert field in caught.value.param or field in caught.value.message
    assert caught.value.type == "invalid_request_error"


def test_a_missing_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt"):
        client.post("/completions", cast_to=object, body={"model": "brook"})


def test_invalid_json_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="not JSON"):
        client.post(
            "/completions",
            cast_to=object,
            content=b"{",
            options={"headers": {"content-type": "application/json"}},
        )


def test_unknown_routes_and_models(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="brook", input="x")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_the_asynchronous_client(server: Server) -> None:
    async def talk() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
            asked = {"model": "brook", "messages": QUESTION, "temperature": 0, "max_tokens": 32}
            whole = await client.chat.completions.create(**asked)
            pieces = []
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                pieces += [choice.delta.content or "" for choice in chunk.choices]
            return whole.choices[0].message.content or "", "".join(pieces)

    whole, streamed = asyncio.run(talk())
    assert "42" in whole
    assert streamed == whole
