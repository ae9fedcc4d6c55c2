"""`huggingface_hub.InferenceClient` and `curl -N` work unmodified."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from huggingface_hub import InferenceClient
from serving import Server

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def client(server: Server) -> InferenceClient:
    return InferenceClient(model=server.url)


def test_text_generation(client: InferenceClient) -> None:
    assert client.text_generation(PROMPT, max_new_tokens=8)


def test_details_have_tokens_and_finish_reason(client: InferenceClient) -> None:
    answer = client.text_generation(PROMPT, max_new_tokens=8, details=True)
    assert answer.details is not None
    assert answer.details.finish_reason == "length"
    assert answer.details.generated_tokens == 8
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text
    assert all(token.logprob <= 0 for token in answer.details.tokens)


def test_best_of_returns_the_other_answers(client: InferenceClient) -> None:
    answer = client.text_generation(
        PROMPT, max_new_tokens=8, best_of=3, do_sample=True, details=True
    )
    assert answer.details is not None
    assert answer.details.best_of_sequences is not None
    everyone = [answer.details, *answer.details.best_of_sequences]
    assert len({one.seed for one in everyone}) == 3
    scores = [sum(t.logprob for t in one.tokens) / len(one.tokens) for one in everyone]
    assert scores == sorted(scores, reverse=True)


def test_streamed_tokens_add_up_to_the_answer(client: InferenceClient) -> None:
    whole = client.text_generation(PROMPT, max_new_tokens=12)
    events = list(client.text_generation(PROMPT, max_new_tokens=12, stream=True, details=True))
    assert "".join(event.token.text for event in events) == whole
    assert [event.index for event in events] == list(range(1, 13))
    assert [event.generated_text for event in events[:-1]] == [None] * 11
    assert events[-1].generated_text == whole


def test_return_full_text_includes_the_prompt(client: InferenceClient) -> None:
    whole = client.text_generation(PROMPT, max_new_tokens=4, return_full_text=True)
    assert whole.startswith(PROMPT)


def test_generated_text_ends_right_after_the_stop_string(client: InferenceClient) -> None:
    whole = client.text_generation(PROMPT, max_new_tokens=40)
    stop = whole[10:14]
    answer = client.text_generation(PROMPT, max_new_tokens=40, stop=[stop], details=True)
    assert answer.generated_text == whole[: whole.index(stop) + len(stop)]
    assert answer.details is not None
    assert answer.details.finish_reason == "stop_sequence"


def test_chat(client: InferenceClient) -> None:
    answer = client.chat_completion(
        [{"role": "user", "content": "What is 12 + 30?"}], max_tokens=32, temperature=0
    )
    assert "42" in (answer.choices[0].message.content or "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_receives_each_event(server: Server) -> None:
    body = json.dumps({"inputs": PROMPT, "parameters": {"max_new_tokens": 5}})
    out = subprocess.run(
        [
            "curl",
            "-sSN",
            f"{server.url}/generate_stream",
            "-H",
            "content-type: application/json",
            "-d",
            body,
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    events = [line for line in out.split("\n\n") if line]
    assert all(event.startswith("data:") for event in events)
    tokens = [json.loads(event.removeprefix("data:")) for event in events]
    assert [token["index"] for token in tokens] == [1, 2, 3, 4, 5]
