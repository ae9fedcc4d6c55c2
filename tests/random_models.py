"""Random models with brook's tokenizer behind a server: tokens must equal `transformers`'."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import torch
from serving import Server, metric_value, wait_for
from small_model import BROOK
from transformers import AutoModelForCausalLM

TOKENS = 48

Variant = tuple[list[str], str | None]
"""Options of a server, and a metric that must be above 0 afterwards."""


def write_random(path: Path, config: Any) -> Path:
    """Writes a model of transformers' configuration with random weights into a folder."""
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3 if weight.dim() > 1 else 0.2)
    network.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BROOK / name, path / name)
    return path


def draw_prompts() -> list[list[int]]:
    """Prompts of several lengths that share a beginning."""
    dice = torch.Generator().manual_seed(3)
    shared = torch.randint(2, 500, (150,), generator=dice).tolist()
    rest = [torch.randint(2, 500, (9 + 41 * i,), generator=dice).tolist() for i in range(8)]
    return [shared + each for each in rest]


def generate(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """The greedy tokens of transformers."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    network.set_experts_implementation("eager")  # the others do not compute in float64
    answers = []
    for ids in prompts:
        with torch.inference_mode():
            out = network.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                do_sample=False,
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                eos_token_id=None,
                pad_token_id=0,
            )
        answers.append(out[0, len(ids) :].tolist())
    return answers


async def answers(server: Server, prompts: list[list[int]]) -> list[list[int]]:
    """The greedy tokens of a server, to which all prompts are sent at once."""

    async def one(client: httpx.AsyncClient, ids: list[int]) -> list[int]:
        body = {"model": "penstock", "prompt": ids, "max_tokens": TOKENS, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        found: list[int] = reply.json()["choices"][0]["token_ids"]
        return found

    async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:
        return list(await asyncio.gather(*(one(client, ids) for ids in prompts)))


def check_tokens(
    log: Path, model: Path, prompts: list[list[int]], expected: list[list[int]], variant: Variant
) -> None:
    """Starts a server with the variant's options; its tokens must be the expected ones, for one
    prompt alone and for all of them, three times each, at once.

    On a busy machine requests may come one after the other, so that none is preempted: then all of
    them are sent again.
    """
    options, metric = variant
    options = ["--model", str(model), "--dtype", "float64", "--max-len", "640", *options]
    with Server(log, options) as server:
        assert asyncio.run(answers(server, prompts[:1])) == expected[:1]
        for _ in range(4):
            assert asyncio.run(answers(server, prompts * 3)) == expected * 3
            if metric is None or metric_value(server, metric) > 0:
                break
        else:
            raise AssertionError(f"{metric} is 0")
        # The step after a request's last token may still run: it holds the request's blocks.
        wait_for(lambda: metric_value(server, 'penstock_kv_blocks{state="leased"}') == 0)
