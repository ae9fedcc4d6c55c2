"""Typed parsing of the official client: an answer becomes an object, streamed or not."""

from __future__ import annotations

import openai
import pytest
from pydantic import BaseModel
from serving import Server


class Person(BaseModel):
    name: str
    age: int


MESSAGES = [{"role": "user", "content": "Extract the name and the age: Ann is 7 years old."}]


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def test_parse(client: openai.OpenAI) -> None:
    answer = client.beta.chat.completions.parse(
        model="brook", messages=MESSAGES, response_format=Person, max_tokens=64, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_parse_of_a_stream(client: openai.OpenAI) -> None:
    asked = {"model": "brook", "messages": MESSAGES, "max_tokens": 64, "temperature": 0}
    with client.beta.chat.completions.stream(response_format=Person, **asked) as stream:
        kinds = {event.type for event in stream}
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert "content.delta" in kinds
    assert isinstance(parsed, Person)
    whole = client.beta.chat.completions.parse(response_format=Person, **asked)
    assert whole.choices[0].message.parsed == parsed


def test_invalid_schema_is_a_bad_request(client: openai.OpenAI) -> None:
    schema = {"name": "x", "schema": {"type": "nothing"}, "strict": True}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="brook",
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": schema},
        )
