"""Ling 1 and 2. transformers has no model of them, but its GLM-4.5 and its Granite with experts
compute the same, under other names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import generate, prompt, reference, write
from local import every_run
from penstock.faults import BadModel
from penstock.models import family, read_specification
from penstock.quant import Methods, Unquantized
from ranks import assert_ranks_agree
from safetensors.torch import load_file, save_file
from torch import Tensor

PLAIN = Methods(Unquantized(torch.float64, torch.device("cpu")))

RENAMES = {
    "model.embed_tokens": "model.word_embeddings",
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "gate.e_score_correction_bias": "gate.expert_bias",
    "block_sparse_moe.router.layer": "mlp.gate",
    "shared_mlp.output_linear": "mlp.shared_experts.down_proj",
}
GLM = {
    "model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
    "topk_group": 2, "moe_intermediate_size": 32, "n_shared_experts": 2, "use_qk_norm": True,
    "routed_scaling_factor": 2.5, "head_dim": 32, "first_k_dense_replace": 1,
}  # fmt: skip
GRANITE = {
    "model_type": "granitemoeshared", "num_local_experts": 8, "num_experts_per_tok": 3,
    "intermediate_size": 32, "shared_intermediate_size": 64, "attention_multiplier": 0.25,
}  # fmt: skip
COMMON = {"head_dim": 32, "moe_intermediate_size": 32, "num_experts": 8, "num_shared_experts": 2}
COMMON |= {"norm_topk_prob": True, "norm_head": False, "use_bias": False, "use_qkv_bias": False}
FIELDS: dict[str, dict[str, Any]] = {
    "glm4_moe": {
        **COMMON, "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe_v2",
        "moe_router_enable_expert_bias": True, "moe_shared_expert_intermediate_size": 32,
        "rotary_dim": 16, "router_dtype": "fp32", "score_function": "sigmoid",
        "use_rmsnorm": True,
    },
    "granitemoeshared": {
        **COMMON, "architectures": ["BailingMoeForCausalLM"], "model_type": "bailing_moe",
        "head_dim": 16, "first_k_dense_replace": 0, "sliding_window": 8,
        "use_sliding_window": False,
    },
}  # fmt: skip
# Of the other model, which Ling's files do not have.
FOREIGN = ("n_routed_experts", "n_shared_experts", "attention_bias", "num_local_experts")
FOREIGN += (
    "rope_parameters",
    "partial_rotary_factor",
    "shared_intermediate_size",
    "logits_scaling",
)
FOREIGN += ("attention_multiplier", "embedding_multiplier", "residual_multiplier")


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under Ling's names."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for old, new in RENAMES.items():
            name = name.replace(old, new)
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            found[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
        elif "input_linear" in name or "moe.output_linear" in name:
            found |= of_granite(name, tensor)
        elif not re.search("self_attn.[kv]_proj", name):
            found[name] = tensor
    return {name: tensor.contiguous() for name, tensor in found.items()}


def of_granite(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Granite's matrices: gates above ups, and those of all experts in one tensor."""
    layer, gated = name.partition("layers.")[2].partition(".")[0], "input_linear" in name
    parts = ("gate_proj", "up_proj") if gated else ("down_proj",)
    experts = {"shared_experts": tensor}
    if "block_sparse_moe" in name:
        experts = {f"experts.{index}": each for index, each in enumerate(tensor)}
    return {
        f"model.layers.{layer}.mlp.{expert}.{part}.weight": half
        for expert, matrix in experts.items()
        for part, half in zip(parts, matrix.chunk(len(parts)), strict=True)
    }


@pytest.fixture(scope="module", params=["glm4_moe", "granitemoeshared"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint of transformers' model, and the same one as Ling's."""
    folder, name = tmp_path_factory.mktemp("checkpoints"), request.param
    theirs = write(folder / name, **{"glm4_moe": GLM, "granitemoeshared": GRANITE}[name])
    ours = folder / "ling"
    ours.mkdir()
    save_file(renamed(load_file(theirs / "model.safetensors")), ours / "model.safetensors")
    raw = json.loads((theirs / "config.json").read_text())
    raw["rope_theta"] = raw["rope_parameters"]["rope_theta"]
    kept = {field: value for field, value in raw.items() if field not in FOREIGN}
    (ours / "config.json").write_text(json.dumps({**kept, **FIELDS[name]}))
    return theirs, ours


def test_published_files_compute_what_transformers_does(pair: tuple[Path, Path]) -> None:
    theirs, ours = pair
    ids = prompt(90)
    runs = every_run(ours, ids)
    model = reference(theirs, torch.float64)
    assert runs.tokens() == generate(model, ids, 24)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(runs.logits[0][0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_several_ranks(pair: tuple[Path, Path], ranks: int) -> None:
    assert_ranks_agree(pair[1], PLAIN, ranks)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"norm_head": True}, "norm_head True is not supported"),
        ({"use_bias": True}, "use_bias True is not supported"),
        ({"score_function": "tanh"}, "score_function .tanh. is not supported"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers above 1"),
        ({"use_rmsnorm": False}, "use_rmsnorm False is not supported"),
    ],
)
def test_fields_that_are_refused(
    pair: tuple[Path, Path], fields: dict[str, Any], text: str
) -> None:
    raw = {**json.loads((pair[1] / "config.json").read_text()), **fields}
    with pytest.raises(BadModel, match=text):
        read_specification(family(raw), raw)
