"""The official `openai` client works unmodified."""

from __future__ import annotations

import openai
import pytest
from serving import Server

QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["brook"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="brook", messages=QUESTION, temperature=0, max_tokens=32
    )
    assert "42" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_chat_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="brook", messages=QUESTION, temperature=0, max_tokens=32
    )
    chunks = list(
        client.chat.completions.create(
            model="brook",
            messages=QUESTION,
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert len({c.id for c in chunks}) == 1


def test_completions_of_several_prompts_keep_their_order(client: openai.OpenAI) -> None:
    prompts = ["Once upon a time", "The fox", "In the forest"]
    answer = client.completions.create(model="brook", prompt=prompts, temperature=0, max_tokens=8)
    alone = [
        client.completions.create(model="brook", prompt=p, temperature=0, max_tokens=8)
        for p in prompts
    ]
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert [c.text for c in answer.choices] == [a.choices[0].text for a in alone]


def test_a_stop_string_is_trimmed_and_never_leaks(client: openai.OpenAI) -> None:
    def text(stop: list[str] | None) -> str:
        stream = client.completions.create(
            model="brook",
            prompt="Once upon a time",
            temperature=0,
            max_tokens=60,
            stop=stop,
            stream=True,
        )
        return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    whole = text(None)
    assert len(whole) > 30
    stop = whole[20:25]  # five characters, wherever the token borders are
    assert text([stop]) == whole[: whole.index(stop)]


def test_the_same_seed_gives_the_same_tokens(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        answer = client.completions.create(
            model="brook", prompt="Once upon a time", temperature=1.0, seed=seed, max_tokens=24
        )
        return answer.choices[0].text

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_ignore_eos_and_min_tokens_as_vllm(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="brook",
        messages=QUESTION,
        temperature=0,
        max_tokens=50,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 50
    assert answer.choices[0].finish_reason == "length"
    longer = client.chat.completions.create(
        model="brook",
        messages=QUESTION,
        temperature=0,
        max_tokens=60,
        extra_body={"min_tokens": 30},
    )
    assert longer.usage is not None
    assert longer.usage.completion_tokens >= 30


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 2), ("presence_penalty", 1.0), ("logprobs", True), ("logit_bias", {"5": 1.0})],
)
def test_what_is_not_built_is_refused_by_name(
    client: openai.OpenAI, field: str, value: object
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="brook", messages=QUESTION, extra_body={field: value})
    assert caught.value.status_code in (400, 422)
    assert field in str(caught.value)
