"""Sequences beyond a model's length: RoPE whose base grows, and Qwen 1."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, SHAPE, generate, prompt, reference, write
from driver import Driver, chunked_hit_and_preempted, greedy
from local import LocalWorker, Refused
from penstock.config import NTK, NTK_POWERS, LogNScale, RopeSpec
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.layers.attention import position_factors
from penstock.layers.rope import rope_table
from penstock.models import family, read_specification
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from ranks import Threads, prefilled
from safetensors.torch import load_file, save_file
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

PLAIN = Methods(Unquantized(torch.float64, torch.device("cpu")))
ORIGINAL, LONGEST, HEAD_DIM = 64, 200, 16
QWEN_NAMES = {
    "model.embed_tokens": "transformer.wte",
    "model.layers": "transformer.h",
    "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.gate_proj": "mlp.w2",
    "mlp.up_proj": "mlp.w1",
    "mlp.down_proj": "mlp.c_proj",
}


@pytest.mark.parametrize(
    ("kind", "theta", "factor", "positions", "original", "base"),
    [
        (NTK, 1e4, 1.0, 4096, 2048, 20221.261690),
        (NTK, 1e4, 2.0, 4096, 2048, 30527.736749),
        (NTK, 1e4, 4.0, 4097, 4096, 10009.920712),
        (NTK, 1e6, 2.5, 1_000_000, 262_144, 8307042.647954),
        (NTK, 1e4, 2.0, 2048, 2048, 1e4),
        (NTK_POWERS, 1e4, None, 4096, 2048, 1e4 * 3 ** (128 / 126)),
        (NTK_POWERS, 1e4, None, 8193, 2048, 1e4 * 15 ** (128 / 126)),
    ],
)
def test_base_of_dynamic_ntk(
    kind: str, theta: float, factor: float | None, positions: int, original: int, base: float
) -> None:
    """Of the server's longest sequence."""
    numbers = {"original_max_position_embeddings": original, "factor": factor}
    table = rope_table(RopeSpec(kind, theta, numbers), 128, positions)
    first = torch.atan2(table[1, 64:], table[1, :64])  # angles of position 1
    expected = base ** -(torch.arange(0, 128, 2) / 128)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-9)


def test_factors_of_logn_attention() -> None:
    build = Build(torch.float64, torch.device("cpu"), Group(), PLAIN, 8192)
    factors = position_factors(LogNScale(2048), build)
    assert factors[:2048].tolist() == [1.0] * 2048
    found = factors[[2048, 4096, 8191]].tolist()
    assert found == pytest.approx([1.000064024, 1.090941107, 1.181818182], rel=1e-6)


def test_longer_sequences_of_dynamic_ntk_are_those_of_transformers(tmp_path: Path) -> None:
    """The last of its steps has the same length, and so the same base."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    fields: dict[str, Any] = {"max_position_embeddings": ORIGINAL, "rope_parameters": rope}
    path = write(tmp_path / "model", model_type="llama", **fields)
    ids, sequence, worker = prompt(LONGEST - 24), greedy(prompt(LONGEST - 24), 24), LocalWorker()
    driver = Driver([worker], worker.load(path, dtype="float64", max_sequence_tokens=LONGEST))
    logits = worker.record_logits()
    driver.enter(sequence)
    driver.finish([sequence], chunk=50)
    driver.stream.close()
    with torch.inference_mode():
        whole = torch.tensor([ids + sequence.tokens])
        theirs = reference(path, torch.float64)(whole).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(torch.cat(logits)[-24:].double(), theirs, rtol=0, atol=2e-4)
    assert sequence.tokens == theirs.argmax(-1).tolist()


def test_models_whose_base_is_fixed_keep_their_length(tmp_path: Path) -> None:
    path = write(tmp_path / "model", model_type="llama", max_position_embeddings=ORIGINAL)
    with pytest.raises(Refused, match=r"the model was made for 64 .*; lower --max-len"):
        LocalWorker().load(path, max_sequence_tokens=LONGEST)


def qwen1(folder: Path) -> tuple[Path, Any]:
    """A checkpoint of Qwen 1, and the Qwen 2 that computes the same up to LONGEST tokens."""
    stretch = 2 ** math.ceil(math.log2(LONGEST / ORIGINAL) + 1) - 1
    theta = 10000.0 * stretch ** (HEAD_DIM / (HEAD_DIM - 2))
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    fields = {"num_key_value_heads": 4, "tie_word_embeddings": False, **rope}
    qwen2 = write(folder / "qwen2", model_type="qwen2", **fields)
    tensors, found = load_file(qwen2 / "model.safetensors"), {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, tensor = name.replace("self_attn.q_proj", "attn.c_attn"), torch.cat(parts)
        elif "k_proj" in name or "v_proj" in name:
            continue
        for old, new in QWEN_NAMES.items():
            name = name.replace(old, new)
        found[name] = tensor
    config = json.loads((qwen2 / "config.json").read_text())
    path = folder / "qwen1"
    path.mkdir()
    save_file(found, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "bf16": True,
        "hidden_size": config["hidden_size"], "intermediate_size": 2 * config["intermediate_size"],
        "kv_channels": HEAD_DIM, "layer_norm_epsilon": config["rms_norm_eps"], "no_bias": True,
        "max_position_embeddings": 4 * ORIGINAL, "num_attention_heads": 4,
        "num_hidden_layers": config["num_hidden_layers"], "rotary_emb_base": 10000,
        "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": ORIGINAL,
        "tie_word_embeddings": False, "use_dynamic_ntk": True, "use_flash_attn": "auto",
        "use_logn_attn": True, "vocab_size": config["vocab_size"],
    }))  # fmt: skip
    model = reference(qwen2, torch.float64)
    AttentionInterface.register("logn", _logn)
    model.config._attn_implementation = "logn"
    return path, model


def _logn(module: Any, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
    """Attention of queries [1, heads, T, head_dim] from position 0 on."""
    seen = torch.arange(1, query.shape[2] + 1).clamp(min=ORIGINAL).to(query.dtype)
    factor = torch.log(seen) / math.log(ORIGINAL)
    return sdpa_attention_forward(module, query * factor[:, None], *rest, **options)


def uncached(model: Any, ids: list[int], count: int) -> list[int]:
    """Greedy tokens, each from the whole sequence."""
    found = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            found.append(int(model(torch.tensor([found]), use_cache=False).logits[0, -1].argmax()))
    return found[len(ids) :]


def test_qwen1_in_chunks_after_hits_and_preemption(tmp_path: Path) -> None:
    """Longer than `seq_length`: both its base and its queries have grown."""
    path, model = qwen1(tmp_path)
    worker = LocalWorker()
    driver = Driver([worker], worker.load(path, dtype="float64", max_sequence_tokens=LONGEST))
    first, second = chunked_hit_and_preempted(driver, prompt(90), wanted=64, before=5)
    assert first.tokens == second.tokens == uncached(model, prompt(90), 64)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_qwen1_compute_what_one_does(tmp_path: Path, ranks: int) -> None:
    path, _ = qwen1(tmp_path)
    cls: Any = family(json.loads((path / "config.json").read_text()))
    alone = prefilled(path, cls, Group(), PLAIN)
    for part in Threads(ranks).run(
        torch.inference_mode()(lambda group: prefilled(path, cls, group, PLAIN))
    ):
        torch.testing.assert_close(part, alone, rtol=0, atol=1e-9)


CHUNK, LOCAL = 96, 24
DUAL_CHUNK = {"chunk_size": CHUNK, "local_size": LOCAL, "original_max_position_embeddings": 128}


def chunked_distance(query: int, key: int) -> int:
    """Of positions in dual chunk attention (arXiv:2402.17463, section 3.3), as vLLM has it."""
    stride = CHUNK - LOCAL
    place, apart = query % stride, query // stride - key // stride
    if apart == 1:
        place = min(place + stride, CHUNK)
    elif apart > 1:
        place = min(2 * stride - 1, CHUNK)
    return place - key % stride


def test_dual_chunk_attention_is_plain_within_a_chunk() -> None:
    """The first query whose distances are others is the one behind a whole chunk."""
    pairs = [(query, key) for query in range(2 * CHUNK) for key in range(query + 1)]
    others = [query for query, key in pairs if chunked_distance(query, key) != query - key]
    assert others[0] > CHUNK - 1


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "qwen3-moe"])
def test_sequences_of_a_chunk_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    """It ignores the field."""
    path = write(tmp_path / "model", **CASES[case])
    raw = json.loads((path / "config.json").read_text())
    chunks = {**DUAL_CHUNK, "sparse_attention_enabled": True, "sparse_attention_threshold": 8}
    raw |= {"dual_chunk_attention_config": chunks, "max_position_embeddings": 1010}
    (path / "config.json").write_text(json.dumps(raw))
    worker, ids = LocalWorker(), prompt(CHUNK - 8)
    loaded = worker.load(path, dtype="float64", max_sequence_tokens=CHUNK)
    driver, sequence = Driver([worker], loaded), greedy(ids, 8)
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    assert sequence.tokens == generate(reference(path, torch.float64), ids, 8)
    text = r"is 97, but the model was made for 96 \(a chunk of dual_chunk_.*; lower --max-len"
    with pytest.raises(Refused, match=text):
        LocalWorker().load(path, max_sequence_tokens=CHUNK + 1)


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ({"chunk_size": None}, "chunk_size must be a number, found None"),
        ({"local_size": 49}, "local_size above 48 is not supported"),
        ({"window": 8}, "window 8 is not supported"),
    ],
)
def test_other_chunks_are_refused_by_name(chunks: dict[str, Any], text: str) -> None:
    raw = {**SHAPE, "architectures": ["Qwen2ForCausalLM"]}
    raw["dual_chunk_attention_config"] = {**DUAL_CHUNK, **chunks}
    with pytest.raises(BadModel, match=text):
        read_specification(family(raw), raw)
