"""A model with recurrent layers behind the server: tokens equal those of `transformers`.

The scheduler of the router and the workers agree on the blocks of states here: prompts share a
beginning, are forked, begin with a checkpoint, and are preempted where memory is short.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import httpx
import pytest
import torch
from serving import Server, metric_value
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3_5TextConfig

BROOK = Path(__file__).resolve().parents[2] / "python/penstock/brook"
TOKENS = 48
VARIANTS: dict[str, tuple[list[str], str | None]] = {
    "plain": ([], "penstock_prefix_hit_tokens"),
    "16-token chunks": (["--max-step-tokens", "16"], "penstock_prefix_hit_tokens"),
    "preempted": (["--kv-memory", "2MiB", "--max-step-tokens", "256"], "penstock_preemptions"),
    "two workers": (["--tp", "2"], "penstock_prefix_hit_tokens"),
    "no prefix cache": (["--no-prefix-cache"], None),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3.5 with brook's tokenizer; one layer of four has softmax attention."""
    path = tmp_path_factory.mktemp("qwen")
    config = Qwen3_5TextConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(BROOK)),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3 if weight.dim() > 1 else 0.2)
    network.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BROOK / name, path / name)
    return path


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    dice = torch.Generator().manual_seed(3)
    shared = torch.randint(2, 500, (150,), generator=dice).tolist()
    rest = [torch.randint(2, 500, (9 + 41 * i,), generator=dice).tolist() for i in range(8)]
    return [shared + each for each in rest]


@pytest.fixture(scope="module")
def expected(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
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
    async def one(client: httpx.AsyncClient, ids: list[int]) -> list[int]:
        body = {"model": "penstock", "prompt": ids, "max_tokens": TOKENS, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        found: list[int] = reply.json()["choices"][0]["token_ids"]
        return found

    async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:
        return list(await asyncio.gather(*(one(client, ids) for ids in prompts)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_equal_transformers(
    tmp_path: Path,
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    variant: str,
) -> None:
    options, metric = VARIANTS[variant]
    options = ["--model", str(model), "--dtype", "float64", "--max-len", "640", *options]
    with Server(tmp_path / "serve.log", options) as server:
        assert asyncio.run(answers(server, prompts[:1])) == expected[:1]
        assert asyncio.run(answers(server, prompts * 3)) == expected * 3
        if metric:
            assert metric_value(server, metric) > 0
        assert metric_value(server, 'penstock_kv_blocks{state="leased"}') == 0


def test_a_common_beginning_is_found(tmp_path: Path, model: Path) -> None:
    """Of prompts with different ends: the second one leaves a checkpoint where they part."""
    dice = torch.Generator().manual_seed(5)
    shared = torch.randint(2, 500, (203,), generator=dice).tolist()
    ends = [torch.randint(2, 500, (40,), generator=dice).tolist() for _ in range(3)]
    found = []
    with Server(tmp_path / "serve.log", ["--model", str(model), "--max-len", "640"]) as server:
        for end in ends:
            asyncio.run(answers(server, [shared + end]))
            found.append(metric_value(server, "penstock_prefix_hit_tokens"))
    assert found == [0, 0, 192]
