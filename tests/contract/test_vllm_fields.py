"""Fields that clients of vLLM send beside OpenAI's."""

from __future__ import annotations

import json
import math
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
def test_include_stop_str_in_output_keeps_the_stop_string(
    client: openai.OpenAI, stream: bool
) -> None:
    whole = chat(client, stream)
    assert whole == "12 + 30 = 42"
    assert chat(client, stream, stop=["30 ="]) == "12 + "
    assert chat(client, stream, stop=["30 ="], include_stop_str_in_output=True) == "12 + 30 ="


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_stop_reason_is_what_ended_the_output(server: Server, route: str, stream: bool) -> None:
    asked = {"messages": ASKED} if route.startswith("chat") else {"prompt": PROMPT}
    body = {"model": "brook", "temperature": 0, "max_tokens": 16, "stream": stream, **asked}

    def choice(**fields: Any) -> dict[str, Any]:
        reply = httpx.post(f"{server.url}/v1/{route}", json={**body, **fields}, timeout=60)
        if not stream:
            return dict(reply.json()["choices"][0])
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        return dict(json.loads(lines[-2])["choices"][0])

    def reason(**fields: Any) -> Any:
        ended = choice(**fields)
        assert ended["finish_reason"] == "stop"
        return ended.get("stop_reason")

    assert reason() is None  # the model's end token
    assert reason(stop=["never", "0 ="]) == "0 ="
    assert reason(stop=["0 ="], include_stop_str_in_output=True) == "0 ="
    plus = httpx.post(f"{server.url}/tokenize", json={"inputs": "2 +"}).json()[-1]["id"]
    assert reason(stop_token_ids=[plus, 5]) == plus
    assert "stop_reason" not in choice(max_tokens=2)


def test_skip_special_tokens_false_keeps_special_tokens(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> str:
        body = {"add_special_tokens": False, "ignore_eos": True, **fields}
        answer = client.completions.create(
            model="brook", prompt=PROMPT, max_tokens=16, temperature=0, extra_body=body
        )
        return answer.choices[0].text

    assert ask().startswith("12 + 30 = 42")
    assert "<|" not in ask()
    assert ask(skip_special_tokens=False).startswith("12 + 30 = 42<|end|>")


def test_return_token_ids(client: openai.OpenAI) -> None:
    """The prompt of a chat as ids continues as the chat does."""
    asked: Any = {"model": "brook", "messages": ASKED, "temperature": 0, "max_tokens": 16}
    result: Any = {"return_token_ids": True}
    chat = client.chat.completions.create(**asked, extra_body=result)
    prompt, ids = chat.prompt_token_ids, chat.choices[0].token_ids  # type: ignore[attr-defined]
    assert chat.usage is not None
    assert len(prompt) == chat.usage.prompt_tokens
    assert len(ids) == chat.usage.completion_tokens
    chunks = list(client.chat.completions.create(**asked, stream=True, extra_body=result))
    assert chunks[0].prompt_token_ids == prompt  # type: ignore[attr-defined]
    streamed = [i for c in chunks for i in c.choices[0].token_ids]  # type: ignore[attr-defined]
    assert streamed == ids
    text = client.completions.create(
        model="brook", prompt=prompt, temperature=0, max_tokens=16, extra_body=result
    )
    assert text.choices[0].token_ids == ids  # type: ignore[attr-defined]
    assert text.choices[0].prompt_token_ids == prompt  # type: ignore[attr-defined]
    assert text.choices[0].text == chat.choices[0].message.content


def test_template_variables_reach_the_template(server: Server) -> None:
    template = "{% for d in documents %}[{{ d.title }}]{% endfor %}{{ reasoning_effort }}"
    body = {"messages": ASKED, "documents": [{"title": "a"}, {"title": "b"}]}
    body |= {"reasoning_effort": "low"}
    url = f"{server.url}/chat_tokenize"
    result = httpx.post(url, json={**body, "chat_template": template}).json()
    assert result["templated_text"] == "[a][b]low"
    for field in ("documents", "reasoning_effort"):
        refused = httpx.post(url, json={"messages": ASKED, field: body[field]})
        assert refused.status_code == 422
        assert f"`{field}` cannot be used: the model's chat template" in refused.text


def test_usage_counts_cached_tokens(client: openai.OpenAI, server: Server) -> None:
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


def test_logprobs_of_requested_token_ids(client: openai.OpenAI) -> None:
    """They are those that the likeliest tokens have; an unlikely one has one too."""

    def ask_logprobs(**fields: Any) -> list[dict[str, float]]:
        body = {"return_tokens_as_token_ids": True, **fields}
        answer = client.completions.create(
            model="brook", prompt="Once upon a time", max_tokens=4, temperature=0, extra_body=body
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.top_logprobs is not None
        return logprobs.top_logprobs

    likely = ask_logprobs(logprobs=5)
    for place, expected in enumerate(likely):
        ids = [int(name.removeprefix("token_id:")) for name in expected]
        named = ask_logprobs(logprob_token_ids=[*ids, 7])[place]
        assert named["token_id:7"] < 0
        for name, logprob in expected.items():
            assert named[name] == pytest.approx(logprob, abs=1e-3)


def test_prompt_logprobs_of_the_whole_vocabulary(client: openai.OpenAI, server: Server) -> None:
    def ask_logprobs(count: int) -> Any:
        body = {"model": "brook", "prompt": "Once upon a time", "max_tokens": 1}
        reply = httpx.post(f"{server.url}/v1/completions", json={**body, "prompt_logprobs": count})
        assert reply.status_code == 200, reply.text[:300]
        return reply.json()["choices"][0]["prompt_logprobs"]

    whole, few = ask_logprobs(-1), ask_logprobs(3)
    assert whole[0] is few[0] is None
    for all_of, some in zip(whole[1:], few[1:], strict=True):
        assert len(all_of) > 1000
        assert sorted(entry["rank"] for entry in all_of.values())[:3] == [1, 2, 3]
        for token_id, entry in some.items():
            assert all_of[token_id]["rank"] == entry["rank"]
            assert all_of[token_id]["logprob"] == pytest.approx(entry["logprob"], abs=1e-3)
        assert sum(math.exp(entry["logprob"]) for entry in all_of.values()) == pytest.approx(1)
    refused = httpx.post(
        f"{server.url}/v1/completions",
        json={"model": "brook", "prompt": "a " * 900, "max_tokens": 1, "prompt_logprobs": -1},
    )
    assert refused.status_code == 400
    assert "logprobs are returned for each" in refused.text
