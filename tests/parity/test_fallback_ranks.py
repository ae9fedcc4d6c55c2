"""Ranks that share a model which transformers' own module computes."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Lock
from typing import Any

import checkpoints
import pytest
import torch
from checkpoints import generate, prompt, reference
from driver import Driver, running
from library_types import raw_configuration, write
from library_types import running as types
from local import LocalWorker, Refused
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.layers import Build, Cut
from penstock.models.fallback import Fallback
from penstock.models.fallback.heads import Heads
from penstock.models.fallback.interface import PagedLayer, Step
from penstock.models.fallback.linears import LinearModule
from penstock.models.fallback.plan import UNNAMED, LinearShare
from penstock.parallel import Group
from penstock.quant import Methods
from penstock.quant.eetq import Eetq
from penstock.quant.unquantized import Unquantized
from quantized import WIDE
from ranks import Threads, last_logits
from together import in_three_ways

LIBRARY = {"model_backend": "transformers", "dtype": "float32"}
# Fused queries, keys and values; windows and soft caps; a layer's two parts side by side; experts,
# with shared ones and without; experts with transposed tensors; gathered outputs, before norms over
# all heads and of fused matrices; latent attention, shared and left out; no plan, and one KV head.
QUICK = (
    "gpt_neox", "gemma2", "cohere", "dots1", "qwen3_moe", "aria_text", "olmo2", "phi3",
    "deepseek_v2", "deepseek_v3", "gpt_bigcode",
)  # fmt: skip
# Why ranks cannot share the others.
LOCAL = "transformers' plan gives layers.*.self_attn the style 'local_params', which is unknown"
FEW = "transformers has no plan for its layers, and ranks would share only "
REFUSED = {
    **dict.fromkeys(("beam", "granite_swa", "granitemoe_swa", "mimo_v2_flash"), LOCAL),
    **dict.fromkeys(("gpt2", "gpt-sw3"), f"{FEW}0% of its weights"),
    "gpt_oss": f"{FEW}14% of its weights",
}
# Their files have one tensor where the library has several linear layers.
FUSED = ("sarvam_moe",)
SHARED = [each for each in types() if each not in {*REFUSED, *FUSED}]
CPU = torch.device("cpu")
SAMPLE = slice(3, None, 9)
library = pytest.mark.library


def tokens_of(path: Path, ranks: int, quantize: str = "") -> list[list[int]]:
    """As `in_three_ways`, of a group of workers."""
    found: list[list[int]] = []
    for workers, loaded in running(path, ranks, quantize=quantize, **LIBRARY):
        found = in_three_ways(Driver(workers, loaded))
    return found


@pytest.mark.parametrize(
    "model_type", [pytest.param(each, marks=() if each in QUICK else library) for each in SHARED]
)
def test_tokens_of_two_ranks_are_those_of_the_library(model_type: str, tmp_path: Path) -> None:
    path = write(model_type, tmp_path)
    expected = generate(reference(path, torch.float32), prompt(60), 12)
    assert tokens_of(path, 2) == [expected] * 3


@pytest.mark.gpu
@pytest.mark.parametrize(
    "model_type", ["gpt_neox", "olmo2", "phi3", "dots1", "deepseek_v3", "gpt_bigcode"]
)
def test_two_gpus_share_a_model(model_type: str, tmp_path: Path) -> None:
    """Each sequence runs twice: as steps are captured, and as graphs."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    path = write(model_type, tmp_path)
    expected = generate(reference(path, torch.float32), prompt(60), 12)
    settings = {**LIBRARY, "dtype": "float16", "device": "cuda", "kv_memory_bytes": 64 << 20}
    for workers, loaded in running(path, 2, **settings):
        for epoch in (1, 2):
            assert in_three_ways(Driver(workers, loaded, epoch)) == [expected] * 3


@pytest.mark.parametrize("part", [SAMPLE, pytest.param(slice(None), marks=library)])
def test_the_types_that_ranks_share(part: slice) -> None:
    found = {each: Fallback.read_config(raw_configuration(each)).sharing for each in types()[part]}
    refused = {each: sharing.refusal for each, sharing in found.items() if sharing.refusal}
    assert refused == {each: REFUSED[each] for each in found if each in REFUSED}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("model_type", ["olmo2", "deepseek_v3", "gpt_bigcode"])
def test_logits_of_ranks_are_those_of_one(model_type: str, ranks: int, tmp_path: Path) -> None:
    """The module makes all heads: of two KV heads or of one, which several ranks have."""
    path = write(model_type, tmp_path)
    spec = Fallback.read_config(read_config(path))
    reading = Lock()  # the library reads weights in one thread alone

    class Guarded(Fallback):
        def _read(self, directory: Path) -> Any:
            with reading:
                return super()._read(directory)

    @torch.inference_mode()
    def work(group: Group) -> tuple[torch.Tensor, int]:
        build = Build(torch.float32, CPU, group, Methods(Unquantized(torch.float32, CPU)), 128)
        model = Guarded(spec, build)
        held = model.load(path, lambda *_: None)
        return last_logits(model, spec, build), held

    alone, all_bytes = work(Group())
    for logits, held in Threads(ranks).run(work):
        torch.testing.assert_close(logits, alone, rtol=0, atol=2e-5)
        assert held < all_bytes
    assert held > all_bytes / ranks


@pytest.mark.parametrize("model_type", ["llama", "phi3", "stablelm"])
def test_tokens_of_quantized_weights_are_those_of_one_rank(model_type: str, tmp_path: Path) -> None:
    """Two ranks have inputs in whole groups of 128."""
    fields = {"model_type": model_type, "pad_token_id": 0}
    path = checkpoints.write(tmp_path / "model", **WIDE | fields)
    assert tokens_of(path, 2, "int4") == tokens_of(path, 1, "int4")


@pytest.mark.parametrize(
    ("model_type", "ranks", "text"),
    [
        ("gpt2", 2, f"--tp is 2, but ranks cannot share this model: {FEW}0% of its weights"),
        ("mimo_v2_flash", 2, LOCAL),
        ("llama", 4, "num_key_value_heads is 2, which 4 ranks cannot share equally"),
        ("phi3", 3, "num_attention_heads is 4, which 3 ranks cannot share equally"),
    ],
)
def test_models_that_ranks_cannot_share(
    model_type: str, ranks: int, text: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(write(model_type, tmp_path), world_size=ranks, **LIBRARY)


@pytest.mark.parametrize("model_type", FUSED)
def test_layers_of_one_tensor_cannot_be_loaded(model_type: str, tmp_path: Path) -> None:
    """By ranks or, as here, quantized: both read the weights of linear layers themselves."""
    text = "lacks tensors: model.layers.0.self_attn.k_proj.weight, "
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(write(model_type, tmp_path), quantize="fp8", **LIBRARY)


def linears_of(model_type: str) -> dict[str, LinearShare]:
    """What ranks have of each linear layer, by its last name."""
    sharing = Fallback.read_config(raw_configuration(model_type)).sharing
    assert not sharing.refusal
    return {path.rpartition(".")[2]: share for path, share in sharing.linears.items()}


def test_the_plan_cuts_linear_layers_of_every_block() -> None:
    outputs = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    inputs = ("o_proj", "down_proj")
    assert linears_of("llama") == {
        **dict.fromkeys(outputs, LinearShare(Cut.OUTPUTS)),
        **dict.fromkeys(inputs, LinearShare(Cut.INPUTS)),
    }
    sharing = Fallback.read_config(raw_configuration("llama")).sharing
    assert len(sharing.linears) == 3 * 7 and not sharing.whole


def test_outputs_of_what_a_plan_leaves_out_are_gathered() -> None:
    """If that is attention. Routers stay whole."""
    attention = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"), UNNAMED)
    assert linears_of("afmoe") == {**attention, "up_proj": UNNAMED, "down_proj": UNNAMED}
    sharing = Fallback.read_config(raw_configuration("afmoe")).sharing
    assert sharing.experts and len(sharing.whole) == 3


@pytest.mark.parametrize(("outputs", "cut"), [(256, Cut.OUTPUTS), (192, None), (576, None)])
def test_gathered_outputs_of_a_format_are_whole_tiles(outputs: int, cut: Cut | None) -> None:
    """Blocks of 128 outputs may have one scale. Where ranks would cut one, all have the matrix."""
    plain = Unquantized(torch.float32, CPU)
    methods = Methods(plain, Eetq(plain))
    for found, expected in ((methods, cut), (methods.floats(), Cut.OUTPUTS)):
        build = Build(torch.float32, CPU, Group(0, 2), found)
        assert LinearModule(outputs, 64, bias=False).build(build, UNNAMED).cut is expected


def paged(heads: Heads) -> PagedLayer:
    fields: dict[str, Any] = {"scale": 1.0, "window": 0, "softcap": 0.0, "width": 8}
    return PagedLayer(0, **fields, heads=heads, cos_sin=torch.empty(0), step=Step())


def test_heads_of_a_rank_must_be_its_share() -> None:
    layer = paged(Heads(4, 2, Group(0, 2), whole=False))
    q, k = torch.zeros(1, 2, 3, 8), torch.zeros(1, 1, 3, 8)
    assert layer(q, k, k, None).shape == (1, 3, 2, 8)
    with pytest.raises(BadModel, match="this rank has 4 query heads and 1 KV heads of layer 0"):
        layer(torch.zeros(1, 4, 3, 8), k, k, None)


def test_a_rank_takes_its_part_of_all_heads() -> None:
    """Of 8 query heads and 2 KV heads, the third of 4 ranks has 2 and the second one."""
    heads = Heads(8, 2, Group(2, 4), whole=True)
    q = torch.arange(8.0).view(1, 8, 1, 1)
    k = torch.arange(2.0).view(1, 2, 1, 1)
    assert heads.given == (8, 2)
    assert [part.flatten().tolist() for part in heads.own(q, k, k)] == [[4, 5], [1], [1]]
    assert heads.own_queries(torch.arange(8), 0).tolist() == [4, 5]  # sinks
