"""Mixtures of experts: weight formats, expert parallelism, damaged checkpoints, wrong settings."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, checkpoint_maker, generate, prompt, reference, write
from driver import Driver, greedy, running
from local import LocalWorker, Refused
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.layers.experts import sparse_mixer
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized, read_methods
from quantized import (
    HOST,
    Quantize,
    assert_equal_model,
    assert_equal_ranks,
    error_of_quantizing,
    quantized,
)
from ranks import LENGTH, Threads, assert_ranks_agree, prefilled
from safetensors.torch import load_file, save_file
from test_auto_round import auto_round
from test_auto_round import settings as rounded_settings
from test_awq import awq
from test_compressed_ints import by_library
from test_compressed_tensors import config_of, scheme
from test_fp8 import DEEPSEEK, in_blocks
from test_gptq import gptq, settings
from test_mx import mxfp4
from test_mxfp8 import mxfp8
from torch import Tensor
from transformers import AutoModelForCausalLM, Mxfp4Config
from transformers.models.phimoe.modeling_phimoe import sparsemixer

WEIGHTS = "model.safetensors"
PLAIN = Methods(Unquantized(torch.float64, HOST))
EXPERTS = [
    "qwen3-moe",
    "qwen2-moe",
    "minimax",
    "mixtral",
    "olmoe",
    "phimoe",
    "glm4-moe",
    "gpt-oss",
    "minimax_m3",
    "minimax_m3_vl",
    "gemma4-moe",
    "dbrx",
    "deepseek-v2",
    "deepseek-v4",
    "dots3-note",
    "jamba",
    "kimi_linear",
    "bailing_hybrid",
    "glm5_next",
    "hy-v4",
    "inkling",
    "inkling2",
    "longcat-flash",
    "nemotron_h-moe",
    "nemotron_h-latent",
    "qwen4_exp",
    "step3p7",
    "zaya",
]
BATCHED = [
    "qwen3-moe",
    "minimax",
    "mixtral",
    "olmoe",
    "phimoe",
    "glm4-moe",
    "gpt-oss",
    "minimax_m3",
    "nemotron_h-moe",
    "step3p7",
]
LATENT = ["deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "deepseek-v32", "glm-moe-dsa"]
LATENT += [
    "axk1",
    "axk2",
    "deepseek-v4",
    "dots3-note",
    "dots3-note-dense",
    "hy-v4",
    "longcat-flash",
]
ONE = "model.layers.2.mlp.experts.5.up_proj.weight"
FP8 = in_blocks(128, 128, scale="weight_scale_inv"), {**DEEPSEEK, "weight_block_size": [128, 128]}
INT4 = settings(group_size=128)
ROUNDED = rounded_settings(
    group_size=128, block_name_to_quantize=["model.layers", "backbone.layers"]
)
WORDS = scheme(
    "pack-quantized",
    {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128},
)
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
FORMATS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "fp8": FP8,
    "int4": (gptq(INT4), INT4),
    "auto-round": (auto_round(ROUNDED), ROUNDED),
    "awq": (awq(128), AWQ),
    "w4a16": (by_library(*WORDS), config_of(*WORDS)),
    "mxfp4": (mxfp4, {"quant_method": "mxfp4"}),
    "mxfp8": (mxfp8(), {"quant_method": "modelopt", "quant_algo": "MXFP8"}),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return quantized_experts(tmp_path_factory.mktemp("formats"))


def quantized_experts(directory: Path) -> dict[str, tuple[Path, Path]]:
    """By format, a checkpoint and what its matrices stand for; all sides are multiples of 128."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    experts = {"moe_intermediate_size": 256, "mlp_only_layers": [0], "vocab_size": 512}
    fields = {**CASES["qwen3-moe"], **sizes, **experts}
    path = write(directory / "plain", **fields)
    made = {}
    for name, (quantize, config) in FORMATS.items():
        (directory / name).mkdir()
        made[name] = quantized(path, directory / name, quantize, config)
    fields = {**CASES["gpt-oss"], "intermediate_size": 128, "vocab_size": 512}
    made["gpt-oss"] = gpt_oss(write(directory / "gpt-oss", **fields), directory)
    return made


def gpt_oss(path: Path, directory: Path) -> tuple[Path, Path]:
    """A checkpoint with its experts in MXFP4, and another of what they stand for, in float64."""
    stored, exact = {}, {}
    for name, tensor in load_file(path / WEIGHTS).items():
        stored[name], exact[name] = tensor, tensor.double()
        if name.endswith(("gate_up_proj", "down_proj")):
            del stored[name]
            made = [mxfp4(matrix.t().contiguous()) for matrix in tensor]
            exact[name] = torch.stack([one for _, one in made]).transpose(1, 2).contiguous()
            for suffix in ("blocks", "scales"):
                parts = [found[f"weight_{suffix}"] for found, _ in made]
                stored[f"{name}_{suffix}"] = torch.stack(parts)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    config = {"quant_method": "mxfp4", "modules_to_not_convert": [*kept, "lm_head"]}
    raw = json.loads((path / "config.json").read_text())
    found = directory / "mxfp4-stored", directory / "mxfp4-exact"
    for folder, tensors, extra in (
        (found[0], stored, {"quantization_config": config}),
        (found[1], exact, {"dtype": "float64"}),
    ):
        folder.mkdir()
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps({**raw, **extra}))
    return found


@pytest.mark.parametrize("name", [*FORMATS, "gpt-oss"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_experts_in_each_weight_format(
    formats: dict[str, tuple[Path, Path]], check: Callable[..., None], name: str
) -> None:
    check(*formats[name])


@pytest.mark.parametrize("name", [*FORMATS, "gpt-oss"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_packed_experts_compute_the_same(
    formats: dict[str, tuple[Path, Path]], name: str, ranks: int
) -> None:
    """As on a device that keeps codes; two ranks share the experts."""
    path, exact = formats[name]
    raw = read_config(path)
    cls: Any = family(raw)

    @torch.inference_mode()
    def work(group: Group) -> Tensor:
        methods = read_methods(raw, torch.float64, HOST)
        method: Any = methods.of("model.layers.1.mlp.experts.0.up_proj")
        method.on_cpu = False
        return prefilled(path, cls, group, methods, expert_parallel=True)

    with torch.inference_mode():
        ids = torch.tensor([prompt(LENGTH)])
        expected = reference(exact, torch.float64)(ids).logits[0, -1:]
    for found in Threads(ranks).run(work):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("case", ["gpt-oss", "gemma4-moe", "nemotron_h-moe", "dbrx"])
@pytest.mark.parametrize("quantize", ["int4", "fp8", "eetq"])
def test_other_experts_are_quantized_while_loading(
    checkpoint: Callable[[str], Path], quantize: str, case: str
) -> None:
    """The logits are near those of the floats, but not equal."""
    path = checkpoint(case)
    assert 1e-4 < error_of_quantizing(path, quantize) < (0.6 if quantize == "int4" else 0.3)


@pytest.mark.parametrize("case", EXPERTS)
def test_ranks_share_experts(checkpoint: Callable[[str], Path], case: str) -> None:
    path = checkpoint(case)
    assert_ranks_agree(path, PLAIN, 2, expert_parallel=True)


@pytest.mark.parametrize(
    "case", ["qwen2-moe", "gpt-oss", "deepseek-v3", "nemotron_h-moe", "step3p7"]
)
def test_two_workers_share_experts(checkpoint: Callable[[str], Path], case: str) -> None:
    """A prompt in chunks, a prefix hit, a preempted sequence: the tokens of transformers."""
    path, ids = checkpoint(case), prompt(90)
    expected = generate(reference(path, torch.float64), ids, 24)
    for workers, loaded in running(path, 2, dtype="float64", expert_parallel=True):
        driver = Driver(workers, loaded)
        first, second = greedy(ids, 24), greedy(ids, 24)
        driver.enter(first)
        while len(first.tokens) < 3:
            driver.step([first], chunk=32)
        driver.enter_after(second, first)
        driver.step([first, second])
        driver.leave(first)
        driver.step([second])
        driver.enter(first)
        driver.finish([first, second])
        driver.stream.close()
        assert first.tokens == second.tokens == expected


@pytest.mark.parametrize("case", [*BATCHED, *LATENT])
def test_batches_and_preemption(checkpoint: Callable[[str], Path], case: str) -> None:
    """Rows of other sequences, and of padding, change no token."""
    path, prompts = checkpoint(case), [prompt(20 + 3 * i, seed=i) for i in range(6)]
    model, worker = reference(path, torch.float64), LocalWorker()
    expected = [generate(model, ids, 16) for ids in prompts]
    driver = Driver([worker], worker.load(path, dtype="float64"))  # type: ignore[list-item]
    worker.runner.packer.pad = True
    sequences = [greedy(ids, 16) for ids in prompts]
    for sequence in sequences:
        driver.enter(sequence)
    for _ in range(5):
        driver.step(sequences)
    driver.leave(sequences[1])
    driver.step([sequences[0], *sequences[2:]])
    driver.enter(sequences[1])
    driver.finish(sequences)
    driver.stream.close()
    assert [sequence.tokens for sequence in sequences] == expected


@pytest.mark.parametrize("jitter", [0.01, 0.2, 0.5])
def test_sparse_mixer_is_transformers(jitter: float) -> None:
    logits = torch.randn(200, 16, generator=torch.Generator().manual_seed(3)) * 2
    weights, ids = sparsemixer(logits, jitter_eps=jitter, training=False)
    routed = sparse_mixer(logits, 2 * jitter)
    assert routed.ids.dtype == torch.int32 and torch.equal(routed.ids.long(), ids)
    torch.testing.assert_close(routed.weights, weights)


def damaged(path: Path, directory: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """A copy of the checkpoint with its tensors changed."""
    shutil.copytree(path, directory / "damaged")
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / "damaged" / WEIGHTS, metadata={"format": "pt"})
    return directory / "damaged"


@pytest.mark.parametrize(
    ("case", "change", "text"),
    [
        ("qwen3-moe", lambda tensors: tensors.pop(ONE), f"lacks tensors: {ONE}"),
        (
            "qwen3-moe",
            lambda tensors: tensors.update({ONE.replace(".5.", ".8."): tensors[ONE].clone()}),
            f"has unknown tensors: {ONE.replace('.5.', '.8.')}",
        ),
        (
            "qwen3-moe",
            lambda tensors: tensors.update({ONE: tensors[ONE][:8].clone()}),
            f"tensor {ONE} has shape [8, 64], but config.json makes it [32, 64]",
        ),
        (
            "gpt-oss",
            lambda tensors: tensors.pop("model.layers.1.mlp.experts.down_proj"),
            "lacks tensors: model.layers.1.mlp.experts.down_proj",
        ),
        (
            "gpt-oss",
            lambda tensors: tensors.pop("model.layers.0.mlp.experts.gate_up_proj_bias"),
            "lacks tensors: model.layers.0.mlp.experts.gate_up_proj_bias",
        ),
    ],
)
def test_tensors_of_experts_that_do_not_fit(
    checkpoint: Callable[[str], Path],
    case: str,
    change: Callable[[dict[str, Tensor]], object],
    text: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(damaged(checkpoint(case), tmp_path, change))


@pytest.mark.parametrize(
    ("case", "changes", "text"),
    [
        ("llama2", {"expert_parallel": True}, "this model has no experts"),
        ("qwen3-moe", {"world_size": 3, "expert_parallel": True}, "num_attention_heads is 4"),
    ],
)
def test_settings_that_do_not_fit(
    checkpoint: Callable[[str], Path], case: str, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(Refused, match=text):
        LocalWorker().load(checkpoint(case), **changes)


def test_ranks_must_share_the_kv_heads(tmp_path: Path) -> None:
    """Or have copies of them; refused before the ranks meet."""
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
    path = write(tmp_path / "three", **{**CASES["llama31"], **sizes})
    text = "num_key_value_heads is 3, which 2 ranks cannot share equally"
    with pytest.raises(Refused, match=text):
        LocalWorker().load(path, world_size=2)


def test_ranks_must_divide_the_experts(tmp_path: Path) -> None:
    path = write(tmp_path / "odd", **{**CASES["qwen3-moe"], "num_experts": 7})
    text = "the number of experts is 7, which 2 ranks cannot share equally"
    with pytest.raises(Refused, match=text):
        LocalWorker().load(path, world_size=2, expert_parallel=True)
    path = write(tmp_path / "narrow", **{**CASES["qwen3-moe"], "moe_intermediate_size": 33})
    with pytest.raises(Refused, match="the experts' intermediate size is 33"):
        LocalWorker().load(path, world_size=2)


def test_groups_that_ranks_would_cut_need_expert_parallelism(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """48 inputs of each of two ranks are no whole groups of 32."""
    path, _ = gpt_oss(checkpoint("gpt-oss"), tmp_path)
    text = "has 48 inputs; use fewer ranks, or share out the experts with --ep"
    raw = read_config(path)
    cls: Any = family(raw)
    methods = read_methods(raw, torch.float32, HOST)

    def build(expert_parallel: bool) -> Build:
        return Build(torch.float32, HOST, Group(0, 2), methods, 8, expert_parallel)

    with pytest.raises(BadModel, match=text):
        cls(cls.read_config(raw), build(expert_parallel=False))
    cls(cls.read_config(raw), build(expert_parallel=True))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (settings(desc_act=True), "groups of inputs in any order"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "not supported for mixtures of experts",
        ),
    ],
)
def test_weight_formats_that_experts_lack(
    checkpoint: Callable[[str], Path], config: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """They are refused before weights are read."""
    raw = json.loads((checkpoint("qwen3-moe") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
    shutil.copy(checkpoint("qwen3-moe") / WEIGHTS, tmp_path)
    with pytest.raises(Refused, match=text):
        LocalWorker().load(tmp_path)


@pytest.mark.parametrize("block", [[128, 128], [1, 32]])
def test_blocks_do_not_fit_tensors_of_all_experts(
    checkpoint: Callable[[str], Path], block: list[int], tmp_path: Path
) -> None:
    raw = json.loads((checkpoint("gpt-oss") / "config.json").read_text())
    config = {**FP8[1], "modules_to_not_convert": ["self_attn"], "weight_block_size": block}
    config["scale_fmt"] = "ue8m0"  # of groups of 32 it is mxfp8
    (tmp_path / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
    shutil.copy(checkpoint("gpt-oss") / WEIGHTS, tmp_path)
    with pytest.raises(Refused, match="one tensor holds all experts"):
        LocalWorker().load(tmp_path)


def test_layers_that_predict_more_tokens_are_not_loaded(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """GLM's checkpoints have one after the last layer."""
    extra = {"model.layers.3.eh_proj.weight": torch.zeros(4)}
    path = damaged(checkpoint("glm4-moe"), tmp_path, lambda tensors: tensors.update(extra))
    assert LocalWorker().load(path).vocab_size == 501


def test_transformers_reads_the_same_numbers(formats: dict[str, tuple[Path, Path]]) -> None:
    """MXFP4 as the tests write it is what transformers reads in it."""
    path, exact = formats["gpt-oss"]
    ids = torch.tensor([prompt(30)])
    config = Mxfp4Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", quantization_config=config
    )
    with torch.inference_mode():
        expected = reference(exact, torch.float32)(ids).logits
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)
