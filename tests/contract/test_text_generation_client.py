"""The `text-generation` client from PyPI works unmodified."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Server

text_generation = pytest.importorskip(
    "text_generation", reason="needs text-generation; its pins do not fit, so: pip --no-deps"
)
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


def test_a_stream_is_the_answer(client: Any) -> None:
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


def test_errors_are_its_exceptions(client: Any) -> None:
    with pytest.raises(ValidationError, match="`max_new_tokens` must be strictly positive"):
        client.generate(PROMPT, max_new_tokens=0)


def test_chat(client: Any) -> None:
    answer = client.chat(
        messages=[{"role": "user", "content": "What is 12 + 30?"}], max_tokens=32, temperature=0
    )
    assert "42" in answer.choices[0].message.content
