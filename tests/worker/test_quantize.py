"""`penstock quantize`: what it writes loads, in the layouts of docs/quantization.md."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoints import CASES, DENSE, SHAPE, prompt, reference, write
from penstock import progress
from penstock.config import MoeSpec, read_config
from penstock.faults import BadModel, BadSetting
from penstock.layers import ExpertMlps
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import read_methods
from penstock.quant.grid import Grid, round_to_nearest
from penstock.quantize import Job, Options, job, output, quantize
from penstock.quantize import __main__ as command
from penstock.quantize.experts import WatchedExperts
from penstock.quantize.layouts import LAYOUTS
from penstock.quantize.quantizer import Quantizer
from penstock.quantize.statistics import Inputs
from penstock.quantize.texts import read_texts
from penstock.quantize.walk import Walk, Watched
from penstock.weights import Checkpoint
from penstock_kernels.route_experts import Routed
from ranks import LENGTH, prefilled
from safetensors.torch import load_file, save_file
from torch import Tensor

BROOK = Path(job.__file__).parents[1] / "brook"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 4096}
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FAMILIES = ["llama-biases", "qwen2-mixed", "qwen3", "gemma2", "gemma3", "phi3-longrope"]
FAMILIES += ["cohere", "gemma", "glm4", "granite", "nanochat", "nemotron", "olmo-tied", "olmo2"]
EXPERTS = ["qwen2-moe", "qwen3-moe", "glm4-moe", "ernie4_5-moe", "dots1", "mixtral"]
# Latent attention and recurrent layers, whose sizes are multiples of a group of 32 here.
LATENT = {"q_lora_rank": 64, "qk_nope_head_dim": 24, "v_head_dim": 16}
LATENT |= {"intermediate_size": 128, "vocab_size": 4096}
MAMBA = {"mamba_d_state": 32, "mamba_n_heads": 8, "mamba_d_head": 16, "vocab_size": 4096}
OTHERS: dict[str, dict[str, Any]] = {
    "deepseek-v3": LATENT,
    "deepseek-v32": LATENT,
    "axk1": LATENT,
    "axk2": LATENT,
    "glm4-moe-lite": LATENT,
    "dots3-note": {
        **LATENT,
        "swa_q_lora_rank": 32,
        **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 8),
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 8),
        "swa_v_head_dim": 16,
        "swa_kv_lora_rank": 32,
        "swa_head_dim": 18,
        "shared_experts_intermediate_size": 32,
        "index_topk": 512,
    },
    "deepseek-v2-lite": {**LATENT, "q_lora_rank": None},
    "bamba": {**MAMBA, "intermediate_size": 128},
    "granitemoehybrid-dense": {**MAMBA, "shared_intermediate_size": 128},
    "bailing_hybrid": {
        **LATENT,
        "q_lora_rank": None,
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 8),
        **dict.fromkeys(("head_dim", "qk_rope_head_dim"), 16),
    },
    "jamba": {"intermediate_size": 128, "vocab_size": 4096},
    "falcon_mamba": {"intermediate_size": 128, "vocab_size": 4096},
    "mamba2": {"state_size": 32, "vocab_size": 4096},
    "kimi_linear": {**LATENT, "q_lora_rank": None, "linear_head_dim": 16},
    "lfm2-moe": {"intermediate_size": 128, "vocab_size": 4096},
    "lfm3-plain": {"intermediate_size": 128, "vocab_size": 4096},
    "olmo_hybrid": {"intermediate_size": 128, "vocab_size": 4096},
    "nemotron_h": {"intermediate_size": 128, "vocab_size": 4096, "ssm_state_size": 32},
    "gpt_bigcode": {"n_inner": 128, "vocab_size": 4096},
    "opt": {"ffn_dim": 128, "vocab_size": 4096},
    "recurrent_gemma": {"vocab_size": 4096},
    "qwen3_5": {"intermediate_size": 128, "vocab_size": 4096},
    "afmoe": {"intermediate_size": 128, "vocab_size": 4096},
    "minimax": {"intermediate_size": 128, "vocab_size": 4096, "head_dim": 16},
    "minimax_m3_vl": {
        "intermediate_size": 64,
        "shared_intermediate_size": 64,
        "dense_intermediate_size": 128,
        "vocab_size": 4096,
        "index_topk_blocks": 8,
        "initializer_range": 0.1,
    },
    "mimo": {"intermediate_size": 128, "vocab_size": 4096, "v_head_dim": 16},
    "qwen3_next": {
        "intermediate_size": 128,
        "shared_expert_intermediate_size": 64,
        "vocab_size": 4096,
    },
}
FORMS = [
    Options("rtn", group=32),
    Options("rtn", bits=8, group=0, symmetric=False),
    Options("gptq", group=32),
    Options("gptq", group=32, symmetric=False, act_order=True),
    Options("gptq", group=32, act_order=True, mse=True),
    Options("rtn", group=64, symmetric=False, mse=True),
    Options("awq", group=32),
    Options("fp8"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 2 layers in bfloat16, with brook's tokenizer."""
    folder = write(tmp_path_factory.mktemp("model") / "small", model_type="llama", **SIZES)
    shutil.copy(BROOK / "tokenizer.json", folder)
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


def stored(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


def dequantized(model: Path, out: Path, options: Options, folder: Path) -> Path:
    """A plain checkpoint of the numbers that a quantized one stands for."""
    layout = LAYOUTS[options.method](options, torch.float32)
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in stored(out).items():
        module, _, suffix = name.rpartition(".")
        modules.setdefault(module, {})[suffix] = tensor
    tensors = {}
    for module, parts in modules.items():
        if parts.keys() & {"qweight", "weight_scale"}:
            biases = {suffix: part for suffix, part in parts.items() if suffix == "bias"}
            parts = {"weight": layout.matrix(parts), **biases}
        tensors |= {f"{module}.{suffix}": part.double() for suffix, part in parts.items()}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(model / "config.json", folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def logits(folder: Path) -> Tensor:
    """Of the worker's own loader."""
    raw = read_config(folder)
    methods = read_methods(raw, torch.float64, torch.device("cpu"))
    cls: Any = family(raw)
    with torch.inference_mode():
        return prefilled(folder, cls, Group(0, 1), methods)


@pytest.mark.parametrize("options", FORMS, ids=lambda o: f"{o.method}-{o.bits}-{o.act_order}")
def test_what_is_written_loads_as_what_it_stands_for(
    model: Path, texts: Path, tmp_path: Path, options: Options
) -> None:
    out = tmp_path / "out"
    report = quantize(Job(model, out, options, texts))
    exact = logits(dequantized(model, out, options, tmp_path / "exact"))
    torch.testing.assert_close(logits(out), exact, rtol=0, atol=1e-6)
    assert report.after == pytest.approx(report.before, rel=0.1) and report.after != report.before
    bits = 4 if options.bits == 4 and options.method != "fp8" else 8
    assert 0 < max(report.errors.values()) < (0.03 if bits == 4 else 0.002)
    assert set(report.errors) == {
        f"model.layers.{layer}.{'mlp' if name in MODULES[4:] else 'self_attn'}.{name}"
        for layer in range(2)
        for name in MODULES
    }
    assert not (out / ".partial").exists()
    assert json.loads((out / "quantize.json").read_text())["errors"] == report.errors
    for name in ("tokenizer.json", "merges.txt"):
        assert (out / name).read_bytes() == (model / name).read_bytes()
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(stored(out))


@pytest.mark.parametrize(
    ("case", "method"),
    [
        *product([*FAMILIES, *EXPERTS], ["awq", "gptq"]),
        *product(["deepseek-v3", "deepseek-v32", "minimax", "minimax_m3_vl"], ["awq"]),
        *product(["nemotron_h", "qwen3_next", "recurrent_gemma"], ["awq"]),
        *product(OTHERS, ["gptq"]),
    ],
)
def test_families(tmp_path: Path, texts: Path, case: str, method: str) -> None:
    sizes = OTHERS.get(case, {"intermediate_size": 128, "vocab_size": 4096})
    if case in EXPERTS and "shared_expert_intermediate_size" in CASES[case]:
        sizes["shared_expert_intermediate_size"] = 64
    folder = write(tmp_path / "model", **{**CASES[case], **sizes})
    shutil.copy(BROOK / "tokenizer.json", folder)
    options, out = Options(method, group=32), tmp_path / "out"
    report = quantize(Job(folder, out, options, texts))
    exact = logits(dequantized(folder, out, options, tmp_path / "exact"))
    torch.testing.assert_close(logits(out), exact, rtol=0, atol=1e-5)
    assert report.after == pytest.approx(report.before, rel=0.5 if case in OTHERS else 0.2)
    assert max(report.errors.values()) < 0.03
    kept = (
        "kv_b_proj",
        "wq_b",
        "wk",
        "weights_proj",
        "in_proj_a",
        "in_proj_b",
        "in_proj_ba",
        *("f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", ".b_proj"),
        *("x_proj", "dt_proj"),
        ".gate",
    )
    assert not any(module.endswith(kept) for module in report.errors)


def test_a_norm_whose_output_is_a_summand_stays(tmp_path: Path, texts: Path) -> None:
    """AWQ would divide it by factors, and with it the residual stream."""
    folder = write(tmp_path / "model", **{**CASES["minimax"], **OTHERS["minimax"]})
    shutil.copy(BROOK / "tokenizer.json", folder)
    quantize(Job(folder, tmp_path / "out", Options("awq", group=32), texts))
    before, after = stored(folder), stored(tmp_path / "out")
    norms = [name for name in before if "layernorm" in name]
    assert len(norms) == 10 and all(torch.equal(before[name], after[name]) for name in norms)


@pytest.mark.parametrize("case", ["granite", "nanochat", "opt"])
def test_the_loss_is_that_of_transformers(tmp_path: Path, case: str) -> None:
    """Of models that scale or normalise embeddings, or add positions to them."""
    folder, texts = write(tmp_path / "model", **CASES[case]), [prompt(40), prompt(60, seed=1)]
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        kind = job._kind(read_config(folder), checkpoint)
        walk = Walk(kind, 64, checkpoint, Watched(torch.float32, torch.device("cpu")))
        batches = walk.enter(texts)
        for index in range(len(walk.model.blocks)):
            layer = walk.layer(index, walk.layer_tensors(index))
            batches = walk.run(layer, index, batches)
        model, inputs = reference(folder, torch.float32), [torch.tensor([text]) for text in texts]
        losses = [float(model(ids, labels=ids).loss) * (ids.numel() - 1) for ids in inputs]
        assert walk.loss(batches, texts) == pytest.approx(sum(losses) / 98, rel=1e-4)


@pytest.mark.parametrize(
    "case",
    ["llama31", "qwen3", "gemma2", "phi3-longrope", "glm4-moe", "deepseek-v2-lite", "qwen3_5"],
)
def test_awq_folds_factors_without_changing_the_model(tmp_path: Path, case: str) -> None:
    folder = write(tmp_path / "model", **{**CASES[case], "intermediate_size": 128})
    texts, changed = [list(range(40)), list(range(100, 150))], tmp_path / "changed"
    host = torch.device("cpu")
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        kind = job._kind(read_config(folder), checkpoint)
        walk = Walk(kind, 64, checkpoint, Watched(torch.float32, host))
        quantizer = Quantizer(walk, Options("awq", group=32), torch.float32)
        tensors = {name: checkpoint[name].tensor().double() for name in checkpoint}
        batches = walk.enter(texts)
        for index in range(len(walk.model.blocks)):
            layer = walk.layer(index, walk.layer_tensors(index))
            inputs = walk.watch(layer, partial(walk.run, layer, index, batches))
            batches = walk.run(layer, index, batches)
            floats = {name: one.float() for name, one in walk.layer_tensors(index).items()}
            factors = quantizer.fold(index, floats, floats, inputs)
            folded = {"attention.qkv"} & set(walk.matrices(index))  # not of recurrent layers
            if isinstance(walk.spec.layers[index].mlp, MoeSpec):
                downs = [f"mlp.experts.{expert}.down" for expert in range(8)]
                assert set(factors) == {*folded, "mlp.shared.down", *downs}
            else:
                assert set(factors) == {*folded, "mlp.gate_up", "mlp.down"}
            assert all(factor.std() > 0.01 for factor in factors.values())
            tensors |= {name: one.double() for name, one in floats.items()}
    changed.mkdir()
    whole = {name: one.clone() for name, one in tensors.items()}
    save_file(whole, changed / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(folder / "config.json", changed)
    torch.testing.assert_close(logits(changed), logits(folder), rtol=0, atol=1e-3)


def test_layout_of_gptq(model: Path, texts: Path, tmp_path: Path) -> None:
    quantize(Job(model, tmp_path / "out", Options("rtn", group=32), texts))
    tensors, name = stored(tmp_path / "out"), "model.layers.1.mlp.down_proj"
    words, zeros = tensors[f"{name}.qweight"], tensors[f"{name}.qzeros"]
    assert (words.shape, words.dtype) == ((16, 64), torch.int32)
    assert (zeros.shape, zeros.dtype) == ((4, 8), torch.int32)
    assert (zeros == 0x77777777).all()  # the zero point 8, less one
    assert tensors[f"{name}.scales"].shape == (4, 64)
    assert tensors[f"{name}.g_idx"].tolist() == [k // 32 for k in range(128)]
    config = read_config(tmp_path / "out")["quantization_config"]
    expected = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
    assert expected.items() <= config.items()
    matrix = stored(model)[f"{name}.weight"].float()
    first = [words[0, 5].item() >> 4 * k & 15 for k in range(8)]
    scale = tensors[f"{name}.scales"][0, 5].float()
    expected_codes = (matrix[5, :8] / scale + 8).round().clamp(0, 15)
    assert first == expected_codes.int().tolist()


def test_layout_of_awq(model: Path, texts: Path, tmp_path: Path) -> None:
    quantize(Job(model, tmp_path / "out", Options("awq", group=32), texts))
    tensors, name = stored(tmp_path / "out"), "model.layers.0.mlp.gate_proj"
    assert tensors[f"{name}.qweight"].shape == (64, 16)
    assert tensors[f"{name}.qzeros"].shape == (2, 16)
    assert tensors[f"{name}.scales"].shape == (2, 128)
    norm = "model.layers.0.post_attention_layernorm.weight"
    assert not torch.equal(tensors[norm], stored(model)[norm])  # it has the factors
    config = read_config(tmp_path / "out")["quantization_config"]
    assert (config["quant_method"], config["version"], config["group_size"]) == ("awq", "gemm", 32)


def test_layout_of_fp8(model: Path, texts: Path, tmp_path: Path) -> None:
    quantize(Job(model, tmp_path / "out", Options("fp8"), texts))
    tensors, name = stored(tmp_path / "out"), "model.layers.0.self_attn.q_proj"
    assert tensors[f"{name}.weight"].dtype == torch.float8_e4m3fn
    assert tensors[f"{name}.weight_scale"].shape == (64, 1)
    config = read_config(tmp_path / "out")["quantization_config"]
    assert (config["quant_method"], config["format"]) == ("compressed-tensors", "float-quantized")


def test_transformers_reads_fp8_as_it_stands(model: Path, texts: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", Options("fp8")
    quantize(Job(model, out, options, texts))
    exact = stored(dequantized(model, out, options, tmp_path / "exact"))
    raw = json.loads((out / "config.json").read_text())
    # The library rounds activations where the checkpoint allows it.
    raw["quantization_config"]["config_groups"]["group_0"]["input_activations"] = None
    (out / "config.json").write_text(json.dumps(raw))
    theirs = reference(out, torch.float32)
    with torch.inference_mode():
        found = theirs(torch.tensor([prompt(LENGTH)])).logits[0, -1:]
    torch.testing.assert_close(found.double(), logits(out), rtol=0, atol=1e-4)
    read = theirs.get_submodule("model.layers.1.mlp.down_proj").weight
    expected = exact["model.layers.1.mlp.down_proj.weight"]
    torch.testing.assert_close(read.double(), expected, rtol=1e-6, atol=0)


def test_calibrated_methods_have_smaller_errors(model: Path, texts: Path, tmp_path: Path) -> None:
    mean = {}
    for method in ("rtn", "gptq", "awq"):
        options = Options(method, group=32, symmetric=method == "awq")
        errors = quantize(Job(model, tmp_path / method, options, texts)).errors
        mean[method] = sum(errors.values()) / len(errors)
    assert mean["gptq"] < 0.8 * mean["rtn"]
    assert mean["awq"] < mean["rtn"]


@pytest.mark.parametrize("group", [0, 32])
def test_gptq_in_activation_order_keeps_groups_and_has_smaller_errors(
    model: Path, texts: Path, tmp_path: Path, group: int
) -> None:
    mean, out = {}, tmp_path / "True"
    for act_order in (False, True):
        options = Options("gptq", group=group, act_order=act_order)
        errors = quantize(Job(model, tmp_path / str(act_order), options, texts)).errors
        mean[act_order] = sum(errors.values()) / len(errors)
    assert mean[True] < 0.95 * mean[False]
    index = stored(out)["model.layers.1.mlp.down_proj.g_idx"]
    assert index.tolist() == [k // (group or 128) for k in range(128)]
    config = read_config(out)["quantization_config"]
    assert (config["desc_act"], config["static_groups"]) == (False, True)


def test_gptq_of_independent_inputs_is_round_to_nearest() -> None:
    from penstock.quantize.gptq import gptq

    torch.manual_seed(0)
    matrix, grid = torch.randn(48, 128), Grid(4, False, torch.bfloat16)
    found = gptq(matrix, torch.eye(128), grid, Options("gptq", group=32))
    expected = round_to_nearest(matrix, grid, 32)
    assert found.zeros is not None and expected.zeros is not None
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(found.scales, expected.scales) and torch.equal(found.zeros, expected.zeros)


def test_statistics_are_means_over_rows() -> None:
    x, matrix = torch.randn(50, 6), torch.randn(4, 6)
    inputs = Inputs(6, torch.device("cpu"))
    inputs.add(x[:20])
    inputs.add(x[20:])
    assert inputs.squared(matrix) == pytest.approx(float((x @ matrix.t()).square().sum() / 50))
    factors = torch.rand(6) + 0.5
    divided = inputs.divided(factors).squared(matrix * factors)
    assert divided == pytest.approx(inputs.squared(matrix), rel=1e-4)


@pytest.mark.parametrize("tokens", [40, 2000])
def test_an_expert_is_calibrated_with_its_own_tokens(tmp_path: Path, tokens: int) -> None:
    """Or with all tokens, if few chose it."""
    folder = write(tmp_path / "model", **CASES["qwen3-moe"])
    torch.manual_seed(1)
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        kind = job._kind(read_config(folder), checkpoint)
        walk = Walk(kind, 64, checkpoint, Watched(torch.float32, torch.device("cpu")))
        layer = walk.layer(2, walk.layer_tensors(2))
        experts: Any = next(one for _, one in layer.walk() if isinstance(one, ExpertMlps))
        watched, whole = WatchedExperts(experts), []
        for _ in range(2):
            x, ids = torch.randn(tokens, 64), torch.randint(0, 8, (tokens, 3)).int()
            watched(x, Routed(ids, torch.rand(tokens, 3)))
            whole.append(x[(ids == 5).any(1)] if tokens > 100 else x)
    rows = torch.cat(whole)
    gate, up = experts.experts.gate_up[5].chunk(2)
    inner = F.silu(rows @ gate.t()) * (rows @ up.t())
    for path, expected in (("5.gate_up", rows), ("5.down", inner)):
        found = watched.inputs(path)
        assert found.rows == len(rows)
        torch.testing.assert_close(found.hessian, expected.t() @ expected / len(rows))
        torch.testing.assert_close(found.magnitude, expected.abs().mean(0))


def test_routers_are_named_as_not_quantized(tmp_path: Path, texts: Path) -> None:
    """Libraries would quantize them, as linear layers like any other."""
    sizes = {"intermediate_size": 128, "vocab_size": 4096, "shared_expert_intermediate_size": 64}
    folder = write(tmp_path / "model", **{**CASES["qwen2-moe"], **sizes})
    shutil.copy(BROOK / "tokenizer.json", folder)
    awq, fp8 = Options("awq", group=32), Options("fp8")
    for options, field in ((awq, "modules_to_not_convert"), (fp8, "ignore")):
        out = tmp_path / options.method
        quantize(Job(folder, out, options, texts))
        kept = read_config(out)["quantization_config"][field]
        mlp = "model.layers.2.mlp."
        assert {f"{mlp}gate", f"{mlp}shared_expert_gate"} <= {*kept}
        assert not any("proj" in name for name in kept)
    quantize(Job(folder, tmp_path / "gptq", Options("rtn", group=32), texts))
    rules = read_config(tmp_path / "gptq")["quantization_config"]["dynamic"]
    assert rules[r"-:model\.layers\.2\.mlp\.gate$"] == {}
    assert not any("proj" in rule for rule in rules)


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_stopped_run_goes_on_to_the_same_files(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    options = Options("gptq", group=32)
    whole = Job(model, tmp_path / "whole", options, texts)
    quantize(whole)
    write_shard, count = output.Output.write, 0

    def stopping(self: Any, index: int, *rest: Any) -> None:
        nonlocal count
        if index == stop:
            raise KeyboardInterrupt
        count += 1
        write_shard(self, index, *rest)

    again = replace(whole, out=tmp_path / "again")
    with monkeypatch.context() as patch:
        patch.setattr(output.Output, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            quantize(again)
    assert count == stop and not (again.out / "config.json").exists()
    quantize(again)
    assert contents(again.out) == contents(whole.out)
    modes = {file.stat().st_mode for file in again.out.iterdir()}
    assert len(modes) == 1, "who may read config.json may read the weights"


def test_an_unfinished_run_with_other_settings_is_refused(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Job(model, tmp_path / "out", Options("rtn", group=32), texts)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(output.Output, "write", stop)
        quantize(begun)
    with pytest.raises(BadSetting, match="unfinished run with other settings: group is 32"):
        quantize(replace(begun, options=Options("rtn", group=16)))
    quantize(begun)
    with pytest.raises(BadSetting, match="exists already"):
        quantize(begun)


def test_a_second_writer_is_refused(model: Path, texts: Path, tmp_path: Path) -> None:
    job = Job(model, tmp_path / "out", Options("rtn", group=32), texts)
    tokens = read_texts(job, 2048, 4096)
    with output.Output(job, tokens.calibration + tokens.measured, 3) as first:
        before = contents(first.folder)
        for options in (job.options, Options("awq", group=32)):
            with pytest.raises(
                BadSetting, match=rf"writing to {job.out} \(process {os.getpid()}\)"
            ):
                quantize(replace(job, options=options))
        assert contents(first.folder) == before
    quantize(job)
    assert not (job.out / ".partial").exists() and not (job.out / "lock").exists()


def test_a_folder_that_a_run_left_before_its_settings_is_taken(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    job = Job(model, tmp_path / "out", Options("rtn", group=32), texts)
    (job.out / ".partial").mkdir(parents=True)
    (job.out / "notes.txt").touch()
    with pytest.raises(BadSetting, match="exists already"):
        quantize(job)
    (job.out / "notes.txt").unlink()
    quantize(job)
    assert (job.out / "config.json").exists()


def test_bad_input_is_refused(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, options in (
        ("method 'hqq' is unknown; choose one of awq, fp8", {"method": "hqq"}),
        ("bits must be 4 or 8, found 3", {"method": "gptq", "bits": 3}),
        ("bits does not apply to .* awq; .* to gptq, rtn", {"method": "awq", "bits": 8}),
        ("bits does not apply to method fp8", {"method": "fp8", "bits": 8}),
        ("group does not apply to .* fp8; .* awq, gptq, rtn", {"method": "fp8", "group": 64}),
        ("symmetric does not apply to method fp8", {"method": "fp8", "symmetric": False}),
        ("symmetric does not apply to method awq", {"method": "awq", "symmetric": False}),
        ("damp does not apply to method rtn; it .* gptq", {"method": "rtn", "damp": 0.5}),
        ("damp must be above 0 and below 1, found 1", {"method": "gptq", "damp": 1.0}),
        ("group must be 0 .* found 20", {"method": "rtn", "group": 20}),
        ("mse does not apply to method awq", {"method": "awq", "mse": True}),
        ("mse does not apply to method fp8", {"method": "fp8", "mse": True}),
        ("act_order does not apply to method rtn", {"method": "rtn", "act_order": True}),
    ):
        with pytest.raises(BadSetting, match=text):
            Options(**options)  # type: ignore[arg-type]
    out = tmp_path / "out"
    with pytest.raises(BadSetting, match="group is 48, which does not divide the 64 inputs of mod"):
        quantize(Job(model, out, Options("rtn", group=48), texts))
    (few := tmp_path / "few").write_text("one line\n")
    with pytest.raises(BadSetting, match="1 texts; at least 2"):
        quantize(Job(model, out, Options("rtn", group=32), few))
    with pytest.raises(BadSetting, match="cannot be read"):
        quantize(Job(model, out, Options("rtn", group=32), tmp_path / "nowhere"))
    assert not out.exists()
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(BadSetting, match=r"needs about .* its disk has 0\.0 GB free"):
        quantize(Job(model, out, Options("rtn", group=32), texts))


def test_a_quantized_model_is_refused(model: Path, texts: Path, tmp_path: Path) -> None:
    quantize(Job(model, tmp_path / "once", Options("fp8"), texts))
    with pytest.raises(BadModel, match="quantized already"):
        quantize(Job(tmp_path / "once", tmp_path / "twice", Options("fp8"), texts))


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("gpt-oss", "tensors of all experts at once"),
        ("mistral4", "tensors of all experts at once"),
        ("zaya", "tensors of all experts at once"),
        ("falcon_h1", "recurrent layers beside attention"),
        ("inkling-dense", "recurrent layers beside attention"),
        ("longcat-flash", "pairs of layers"),
        ("zamba", "weights of several layers"),
        ("zamba2", "weights of several layers"),
        ("hy-v4", "several residual streams"),
        ("inkling2", "several residual streams"),
        ("glm5_next", "several residual streams"),
        ("deepseek-v4", "several residual streams"),
        ("gemma4-shared", "layers that need more than the one before"),
        ("glm-moe-dsa", "layers that need more than the one before"),
        ("gpt2", "how Gpt2 stores matrices"),
        ("gpt_neox", "how GptNeoX stores matrices"),
    ],
)
def test_models_that_cannot_be_quantized(tmp_path: Path, texts: Path, case: str, text: str) -> None:
    folder = write(tmp_path / "model", **{**SHAPE, **(CASES | DENSE)[case]})
    with pytest.raises(BadModel, match=f"does not support {text}"):
        quantize(Job(folder, tmp_path / "out", Options("rtn", group=32), texts))
    assert not (tmp_path / "out").exists()


def test_the_command_reports_and_explains(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    arguments = ["quantize", str(model), str(tmp_path / "out"), "--calibration", str(texts)]
    more = ["--group", "32", "--device", "cpu", "--method"]
    for method, code in (("rtn", 0), ("best", 1)):
        monkeypatch.setattr("sys.argv", [*arguments, *more, method])
        assert command.main() == code
    shown = capsys.readouterr()
    assert "before" in shown.out and "after" in shown.out
    lines = shown.err.splitlines()
    assert lines[:3:2] == ["quantizing: 0 of 2 layers", "quantizing: 2 of 2 layers"]
    assert re.fullmatch(r"quantizing: 1 of 2 layers, \d+ s left", lines[1])
    assert lines[-1].startswith("error: method 'best' is unknown")
