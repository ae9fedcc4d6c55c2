"""Fields that clients of vLLM send beside OpenAI's."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from serving import Server

ASKED: Any = [{"role": "user", "content": "What is 12 + 30?"}]
PROMPT = "<|bos|><|user|>What is 12 + 30?<|end|><|assistant|>"


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def chat(client: openai.OpenAI, stream: bool, **fields: Any) -> str:
    asked: Any = {"model": "brook", "messages": ASKED, "temperature": 0, "max_tokens": 16}
    body = {"model": "brook", **fields}
    if not stream:
        answer = client.chat.completions.create(**asked, extra_body=body)
        return str(answer.choices[0].message.content)
    chunks = client.chat.completions.create(**asked, stream=True, extra_body=body)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_may_stay(client: openai.OpenAI, stream: bool) -> None:
    whole = chat(client, stream)
    assert whole == "12 + 30 = 42"
    assert chat(client, stream, stop=["30 ="]) == "12 + "
    assert chat(client, stream, stop=["30 ="], include_stop_str_in_output=True) == "12 + 30 ="


def test_special_tokens_may_stay(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> str:
        body = {"add_special_tokens": False, "ignore_eos": True, **fields}
        answer = client.completions.create(
            model="brook", prompt=PROMPT, max_tokens=16, temperature=0, extra_body=body
        )
        return answer.choices[0].text

    assert ask().startswith("12 + 30 = 42")
    assert "<|" not in ask()
    assert ask(skip_special_tokens=False).startswith("12 + 30 = 42<|end|>")


def test_ids_of_tokens(client: openai.OpenAI) -> None:
    """The prompt of a chat as ids continues as the chat does."""
    asked: Any = {"model": "brook", "messages": ASKED, "temperature": 0, "max_tokens": 16}
    told: Any = {"return_token_ids": True}
    chat = client.chat.completions.create(**asked, extra_body=told)
    prompt, ids = chat.prompt_token_ids, chat.choices[0].token_ids  # type: ignore[attr-defined]
    assert chat.usage is not None
    assert len(prompt) == chat.usage.prompt_tokens
    assert len(ids) == chat.usage.completion_tokens
    chunks = list(client.chat.completions.create(**asked, stream=True, extra_body=told))
    assert chunks[0].prompt_token_ids == prompt  # type: ignore[attr-defined]
    streamed = [i for c in chunks for i in c.choices[0].token_ids]  # type: ignore[attr-defined]
    assert streamed == ids
    text = client.completions.create(
        model="brook", prompt=prompt, temperature=0, max_tokens=16, extra_body=told
    )
    assert text.choices[0].token_ids == ids  # type: ignore[attr-defined]
    assert text.choices[0].prompt_token_ids == prompt  # type: ignore[attr-defined]
    assert text.choices[0].text == chat.choices[0].message.content


def test_variables_that_only_some_templates_know(server: Server) -> None:
    template = "{% for d in documents %}[{{ d.title }}]{% endfor %}{{ reasoning_effort }}"
    body = {"messages": ASKED, "documents": [{"title": "a"}, {"title": "b"}]}
    body |= {"reasoning_effort": "low"}
    url = f"{server.url}/chat_tokenize"
    told = httpx.post(url, json={**body, "chat_template": template}).json()
    assert told["templated_text"] == "[a][b]low"
    for field in ("documents", "reasoning_effort"):
        refused = httpx.post(url, json={"messages": ASKED, field: body[field]})
        assert refused.status_code == 422
        assert f"`{field}` cannot be used: the model's chat template" in refused.text


def test_tokens_of_the_prefix_cache_are_counted(client: openai.OpenAI, server: Server) -> None:
    """On every route: whole blocks of a prompt that came before."""
    asked: Any = [
        {"role": "user", "content": "Tell me of a fox who counts its cached tokens. " * 4}
    ]

    def cached(stream: bool) -> int:
        fields: Any = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = client.chat.completions.create(
            model="brook", messages=asked, max_tokens=4, **fields
        )
        usage = list(answer)[-1].usage if stream else answer.usage
        return int(usage.prompt_tokens_details.cached_tokens)

    assert cached(False) < 16
    hit = cached(False)
    assert hit > 16
    assert cached(True) == hit
    body = {"model": "brook", "messages": asked, "max_tokens": 4}
    usage = httpx.post(f"{server.url}/v1/messages", json=body).json()["usage"]
    assert usage["cache_read_input_tokens"] == hit
    response = client.responses.create(model="brook", input=asked, max_output_tokens=4)
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == hit
    assert usage["input_tokens"] + hit == response.usage.input_tokens
