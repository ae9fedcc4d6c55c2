"""The same greedy tokens however a request is run: the server against `transformers`.

Everything is float64, where rounding does not decide between two tokens.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache
from pathlib import Path

import httpx
import pytest
import torch
from random_models import Variant
from serving import Server, metric_value, metrics
from small_model import BROOK, write_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKENS = 64
PROMPTS = [
    "Once upon a time there was",
    "The fox went to the river and",
    "A",
    "In the forest lived an old owl. " * 6 + "One day",
    "Once upon a time there was",  # the same prompt again: a prefix hit
    "My name is Ada and I live in a town by the sea. " * 20,
    "Question: what is 12 + 30?",
    "0 1 2 3 4 5 6 7 8 9",
]
# How a server is started -> what its metrics must show, so that the case is what it says.
VARIANTS: dict[str, Variant] = {
    "brook": ([], "penstock_prefix_hit_tokens"),
    "16-token chunks": (["--max-step-tokens", "16"], None),
    "no prefix cache": (["--no-prefix-cache"], None),
    "preempted": (["--kv-memory", "640KiB", "--max-len", "512"], "penstock_preemptions"),
    "two workers": (["--tp", "2"], None),
}


@cache
def greedy(model: Path) -> list[list[int]]:
    """What `transformers` generates for each prompt alone."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            out = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=TOKENS,
                pad_token_id=0,
            )
        answers.append(out[0, ids.shape[1] :].tolist())
    return answers


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model") / "small")


async def tokens(client: httpx.AsyncClient, prompt: str, most: int) -> list[int]:
    body = {"inputs": prompt, "parameters": {"max_new_tokens": most, "details": True}}
    reply = await client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    return [token["id"] for token in reply.json()["details"]["tokens"]]


async def all_tokens(server: Server, prompts: list[str], most: int = TOKENS) -> list[list[int]]:
    limits = httpx.Limits(max_connections=len(prompts))
    async with httpx.AsyncClient(base_url=server.url, timeout=240, limits=limits) as client:
        return list(await asyncio.gather(*(tokens(client, prompt, most) for prompt in prompts)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_equal_transformers_alone_and_in_a_batch(
    variant: str, small: Path, tmp_path: Path
) -> None:
    model = BROOK if variant == "brook" else small
    expected = greedy(model)
    options, metric = VARIANTS[variant]
    options = ["--model", str(model), "--dtype", "float64", *options]
    with Server(tmp_path / "serve.log", options) as server:
        alone = [asyncio.run(all_tokens(server, [prompt]))[0] for prompt in PROMPTS[:3]]
        assert alone == expected[:3]
        assert asyncio.run(all_tokens(server, PROMPTS * 4)) == expected * 4
        if metric:
            assert metric_value(server, metric) > 0


MANY = [f"{number} animals went to the river. The first of them was" for number in range(256)]


def test_256_streams_in_float32(tmp_path: Path) -> None:
    """Alone a step is replayed from a tape; with 256, products are summed in other orders."""
    options = ["--dtype", "float32", "--max-slots", "256"]
    with Server(tmp_path / "serve.log", options) as server:
        together = asyncio.run(all_tokens(server, MANY, most=24))
        steps = metric_value(server, "tgi_batch_next_size_count")
        few = re.search(r'tgi_batch_next_size_bucket{le="128.0"} (\d+)', metrics(server))
        assert few is not None
        assert int(few[1]) < steps, "no step had more than 128 sequences"
        some = range(0, 256, 16)
        alone = [asyncio.run(all_tokens(server, [MANY[index]], most=24))[0] for index in some]
    assert alone == [together[index] for index in some]
    assert len(set(map(tuple, together))) > 16  # not one answer for all
