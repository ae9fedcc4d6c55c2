"""Beam search gives what `transformers` gives: every answer, in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from serving import Server, metrics
from small_model import BROOK, write_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = ["Once upon a time there was", "The fox", "What is 12 + 30?"]
TOKENS = 16
# (width, length_penalty, early_stopping)
SEARCHES: list[tuple[int, float, bool | str]] = [
    (2, 0.0, False),
    (2, 2.0, True),
    (4, 1.0, True),
    (4, 0.0, "never"),
    (4, 2.0, False),
    (10, 1.0, False),
]
Oracle = Callable[[str, int, float, bool | str], list[str]]


@dataclass(frozen=True)
class Variant:
    dtype: str
    options: list[str] = field(default_factory=list)
    tiny: bool = False  # a random model instead of brook
    preempts: bool = False


VARIANTS = {
    "brook": Variant("float64", ["--block-tokens", "4"]),
    # Too little memory for ten beams at once, and two workers.
    "tight": Variant("float64", ["--tp", "2", "--block-tokens", "1", "--no-prefix-cache",
                                 "--kv-memory", "640KiB", "--max-len", "64"],
                     tiny=True, preempts=True),
    "tiny": Variant("float32", tiny=True),
}  # fmt: skip


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Oracle, Variant]]:
    variant = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("beam")
    model = write_llama(folder / "model") if variant.tiny else BROOK
    options = ["--model", str(model), "--dtype", variant.dtype, *variant.options]
    with Server(folder / "serve.log", options) as server:
        yield server, oracle(model, getattr(torch, variant.dtype)), variant


@cache
def oracle(path: Path, dtype: torch.dtype) -> Oracle:
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()

    @cache
    def search(prompt: str, width: int, length_penalty: float, early: bool | str) -> list[str]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                num_beams=width,
                num_return_sequences=width,
                length_penalty=length_penalty,
                early_stopping=early,
                max_new_tokens=TOKENS,
                pad_token_id=0,
            )
        rows = out[:, ids.shape[1] :]
        return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]

    return search


def complete(server: Server, body: dict[str, Any]) -> list[str]:
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=240)
    assert reply.status_code == 200, reply.text
    return [choice["text"] for choice in reply.json()["choices"]]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_beam_search_equals_transformers(
    searched: tuple[Server, Oracle, Variant], search: tuple[int, float, bool | str]
) -> None:
    """Three searches at once, beside streams that do not search."""
    server, oracle, variant = searched
    width, penalty, early = search
    body = {
        "prompt": PROMPTS,
        "use_beam_search": True,
        "n": width,
        "length_penalty": penalty,
        "early_stopping": early,
        "max_tokens": TOKENS,
    }
    others = {"prompt": "The owl", "n": 2, "seed": 3, "max_tokens": 40, "ignore_eos": True}
    alone = complete(server, others)
    with ThreadPoolExecutor() as pool:
        beside = pool.submit(complete, server, others)
        texts = complete(server, body)
        assert beside.result() == alone
    assert texts == [text for prompt in PROMPTS for text in oracle(prompt, width, penalty, early)]
    if variant.preempts and width == 10:
        assert "penstock_preemptions_total 0" not in metrics(server)


def test_beam_logprobs_equal_prompt_logprobs_of_the_text(
    searched: tuple[Server, Oracle, Variant],
) -> None:
    """They are what the model gives each token of the answer, read as a prompt."""
    server, _, variant = searched
    search = {"use_beam_search": True, "n": 4, "length_penalty": 0.0, "logprobs": 3}
    body = {"prompt": PROMPTS[0], "max_tokens": TOKENS, "ignore_eos": True, **search}
    url = f"{server.url}/v1/completions"
    choices = httpx.post(url, json=body, timeout=240).json()["choices"]
    sums = []
    for choice in choices:
        reported = choice["logprobs"]
        assert len(reported["token_logprobs"]) == len(reported["top_logprobs"]) == TOKENS
        if not variant.tiny:  # which writes halves of characters
            assert "".join(reported["tokens"]) == choice["text"]
        sums.append(sum(reported["token_logprobs"]))
        for token, own, top in zip(
            reported["tokens"], reported["token_logprobs"], reported["top_logprobs"], strict=True
        ):
            assert top[token] == own
            assert 3 <= len(top) <= 4
            assert max(top.values()) <= 0
    assert sums == sorted(sums, reverse=True)
    if not variant.tiny:
        text = PROMPTS[0] + choices[0]["text"]
        read = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}
        known = httpx.post(url, json=read, timeout=240).json()["choices"][0]["logprobs"]
        reported = choices[0]["logprobs"]
        assert known["tokens"][-TOKENS:] == reported["tokens"]
        assert known["token_logprobs"][-TOKENS:] == pytest.approx(
            reported["token_logprobs"], abs=1e-4
        )


def test_native_route_returns_the_best_beam(searched: tuple[Server, Oracle, Variant]) -> None:
    server, oracle, _ = searched
    parameters = {"use_beam_search": True, "beam_width": 4, "max_new_tokens": TOKENS}
    body = {"inputs": PROMPTS[0], "parameters": {**parameters, "details": True}}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=240).json()
    assert answer["generated_text"] == oracle(PROMPTS[0], 4, 1.0, False)[0]
    assert len(answer["details"]["tokens"]) == answer["details"]["generated_tokens"]
    events = httpx.post(f"{server.url}/generate_stream", json=body, timeout=240).text
    last = json.loads(events.strip().splitlines()[-1].removeprefix("data:"))
    assert last["generated_text"] == answer["generated_text"]
