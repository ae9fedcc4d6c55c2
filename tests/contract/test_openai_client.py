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


def test_chat_stream_adds_up_to_the_answer(client: openai.OpenAI) -> None:
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
    for usage in (chunks[-1].usage, whole.usage):
        assert usage is not None
        usage.prompt_tokens_details = None  # the second prompt is in the cache
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


def test_stop_string_never_appears_in_a_stream(client: openai.OpenAI) -> None:
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


def test_n_choices_equal_n_seeded_requests(client: openai.OpenAI) -> None:
    wanted = {"model": "brook", "prompt": "Once upon a time", "seed": 7, "max_tokens": 12}
    whole = client.completions.create(**wanted, n=3)  # type: ignore[call-overload]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.text for choice in whole.choices}) == 3
    assert whole.choices[0].text == client.completions.create(**wanted).choices[0].text  # type: ignore[call-overload]
    parts = ["", "", ""]
    for chunk in client.completions.create(**wanted, n=3, stream=True):  # type: ignore[call-overload]
        parts[chunk.choices[0].index] += chunk.choices[0].text
    assert parts == [choice.text for choice in whole.choices]
    best = client.completions.create(**wanted, n=1, best_of=3)  # type: ignore[call-overload]
    assert best.choices[0].text in parts
    assert best.usage.completion_tokens == whole.usage.completion_tokens
    assert best.usage.prompt_tokens == whole.usage.prompt_tokens


def test_n_choices_of_a_chat(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(
        model="brook", messages=QUESTION, n=3, max_tokens=16, seed=3, stream=True
    )
    said = {0: "", 1: "", 2: ""}
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    answer = client.chat.completions.create(
        model="brook", messages=QUESTION, n=3, max_tokens=16, seed=3
    )
    assert [choice.message.content for choice in answer.choices] == list(said.values())


def test_bad_words_are_never_generated(client: openai.OpenAI) -> None:
    def say(**fields: object) -> str:
        answer = client.completions.create(
            model="brook",
            prompt="Once upon a time",
            max_tokens=40,
            temperature=0,
            extra_body=fields,
        )
        return answer.choices[0].text

    usual = say()
    longest = sorted((word.strip('.,"') for word in usual.split()), key=len)[-3:]
    other = say(bad_words=longest)
    assert all(word in usual and f" {word}" not in other for word in longest), (usual, other)


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 0), ("bad_words", [""])],
)
def test_unsupported_fields_are_refused_by_name(
    client: openai.OpenAI, field: str, value: object
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="brook", messages=QUESTION, extra_body={field: value})
    assert caught.value.type == "invalid_request_error"
    assert field in str(caught.value)


def test_texts_without_special_tokens(client: openai.OpenAI) -> None:
    """As vLLM has it: for texts that hold their special tokens already."""
    counts = []
    for added in (True, False):
        answer = client.completions.create(
            model="brook",
            prompt="Once upon a time",
            max_tokens=1,
            extra_body={"add_special_tokens": added},
        )
        counts.append(answer.usage.prompt_tokens)
    assert counts[0] == counts[1] + 1
