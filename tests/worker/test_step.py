"""Step 3.5 and 3.7: how checkpoints store experts, in each weight format, and bounds of gates."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, checkpoint_maker, prompt, write
from local import LocalWorker, Refused
from penstock.config import MlpSpec, MoeSpec, read_config
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized, read_methods
from penstock.quantize import Job, Options, job, quantize
from penstock.quantize.quantizer import Quantizer
from penstock.quantize.walk import Walk, Watched
from penstock.weights import Checkpoint
from quantized import HOST, Quantize, assert_equal_model, assert_equal_ranks
from ranks import Threads, prefilled
from safetensors.torch import load_file, save_file
from test_fp8 import DEEPSEEK, in_blocks
from test_gptq import settings
from test_mx import MODELOPT, nvfp4
from test_mxfp8 import mxfp8
from test_quantize import BROOK, dequantized, logits
from test_quantize_while_loading import EXACT
from torch import Tensor

WEIGHTS = "model.safetensors"
PLAIN = Methods(Unquantized(torch.float64, HOST))
MATRICES = re.compile(r"model\.layers\.\d+\.((self_attn|mlp|share_expert)\.\w+_proj|moe\.\w+_proj)")
OF_EXPERTS = re.compile(r"(.*\.moe)\.(gate_proj|up_proj|down_proj)\.weight")
FORMATS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "blocks": (
        in_blocks(32, 16, scale="weight_scale_inv"),
        {**DEEPSEEK, "weight_block_size": [32, 16]},
    ),
    "tensors": (in_blocks(0, 0), DEEPSEEK),
    "outputs": (in_blocks(1, 0), DEEPSEEK),
    "nvfp4": (nvfp4, {**MODELOPT, "quant_algo": "NVFP4"}),
    "mxfp8": (mxfp8(), {**MODELOPT, "quant_algo": "MXFP8"}),
}


# Four ranks have whole blocks, and words hold the gates of eight heads.
SIZES = {"num_attention_heads": 8, "num_sliding_attention_heads": 16, "head_dim": 16}
SIZES |= {"intermediate_size": 128, "moe_intermediate_size": 64, "share_expert_dim": 64}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("wide") / "model", **{**CASES["step3p7"], **SIZES})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def copied(path: Path, folder: Path, tensors: dict[str, Tensor], **fields: Any) -> Path:
    """The checkpoint with other tensors, and more fields in config.json."""
    folder.mkdir()
    save_file({name: one.contiguous() for name, one in tensors.items()}, folder / WEIGHTS)
    raw = json.loads((path / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **fields}))
    return folder


def apart(path: Path, folder: Path) -> Path:
    """The checkpoint with tensors of each expert's own."""
    found = {}
    for name, tensor in load_file(path / WEIGHTS).items():
        if match := OF_EXPERTS.fullmatch(name):
            for expert, matrix in enumerate(tensor):
                found[f"{match[1]}.experts.{expert}.{match[2]}.weight"] = matrix
        else:
            found[name] = tensor
    return copied(path, folder, found)


def stored(
    path: Path, folder: Path, quantized: Quantize, config: dict[str, Any]
) -> tuple[Path, Path]:
    """The checkpoint in a format, and another of what its codes stand for, in float64."""
    codes, exact = {}, {}
    for name, tensor in load_file(path / WEIGHTS).items():
        codes[name], exact[name] = tensor, tensor.double()
        module = name.removesuffix(".weight")
        if MATRICES.fullmatch(module):
            made = [quantized(matrix) for matrix in (tensor if tensor.ndim > 2 else tensor[None])]
            exact[name] = torch.stack([one for _, one in made]).view(tensor.shape)
            for suffix in made[0][0]:
                parts = torch.stack([parts[suffix] for parts, _ in made])
                codes[f"{module}.{suffix}"] = parts if tensor.ndim > 2 else parts[0]
    return (
        copied(path, folder / "codes", codes, quantization_config=config),
        copied(path, folder / "exact", exact, dtype="float64"),
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_tensors_of_all_experts_in_each_format(
    wide: Path, tmp_path: Path, check: Callable[..., None], form: str
) -> None:
    check(*stored(wide, tmp_path, *FORMATS[form]))


@pytest.mark.parametrize("form", ["", "blocks"])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_heads_and_experts(
    wide: Path, tmp_path: Path, together: bool, form: str, ranks: int
) -> None:
    """Four ranks have each KV head twice; experts are whole, or a part of each is on every rank."""
    path = stored(wide, tmp_path, *FORMATS[form])[0] if form else wide
    raw = read_config(path)
    cls: Any = family(raw)

    @torch.inference_mode()
    def work(group: Group) -> Tensor:
        methods = read_methods(raw, torch.float64, HOST)
        return prefilled(path, cls, group, methods, expert_parallel=not together)

    alone = work(Group())
    for found in Threads(ranks).run(work):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-9)


def test_experts_may_have_tensors_of_their_own(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = checkpoint("step3p7")
    assert_equal_model(apart(path, tmp_path / "apart"), path)


def test_names_may_have_a_prefix(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """And tensors of images have one."""
    path, found = checkpoint("step3p7"), {}
    for name, tensor in load_file(path / WEIGHTS).items():
        text = name.replace("model.", "model.language_model.", 1)
        found[f"model.{name}" if name.startswith("vi") else text] = tensor
    assert "model.vit_large_projector.weight" in found
    cls: Any = family(read_config(path))
    with torch.inference_mode():
        expected = prefilled(path, cls, Group(), PLAIN)
        made = prefilled(copied(path, tmp_path / "prefix", found), cls, Group(), PLAIN)
    torch.testing.assert_close(made, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("together", [True, False])
def test_quantize_while_loading(wide: Path, tmp_path: Path, together: bool, name: str) -> None:
    def convert(matrix: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {"weight": matrix}, EXACT[name](matrix, math.gcd(128, matrix.shape[1]))

    path, exact = stored(wide, tmp_path, convert, {})
    path = path if together else apart(path, tmp_path / "apart")
    assert_equal_model(path, exact, quantize=name)


def test_formats_that_tensors_of_all_experts_cannot_have(wide: Path, tmp_path: Path) -> None:
    config = settings(group_size=32)
    made = copied(wide, tmp_path / "gptq", load_file(wide / WEIGHTS), quantization_config=config)
    with pytest.raises(Refused, match="where one tensor holds a matrix of all experts"):
        LocalWorker().load(made)


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_penstock_quantize(tmp_path: Path, texts: Path, method: str) -> None:
    """Of experts with tensors of their own. Ups that have a bound keep their size."""
    fields = {**CASES["step3p7"], **SIZES, "vocab_size": 4096, "initializer_range": 0.15}
    whole = write(tmp_path / "whole", **fields)
    options, out = Options(method, group=32), tmp_path / "out"
    with pytest.raises(Exception, match="tensors of all experts at once"):
        quantize(Job(whole, out, options, texts))
    folder = apart(whole, tmp_path / "apart")
    shutil.copy(BROOK / "tokenizer.json", folder)
    report = quantize(Job(folder, out, options, texts))
    exact = logits(dequantized(folder, out, options, tmp_path / "exact"))
    torch.testing.assert_close(logits(out), exact, rtol=0, atol=1e-5)
    assert report.after == pytest.approx(report.before, rel=0.5)
    assert max(report.errors.values()) < 0.03


def test_awq_leaves_ups_that_have_a_bound(wide: Path, tmp_path: Path) -> None:
    """What is bounded does not grow with them."""
    folder, texts = apart(wide, tmp_path / "apart"), [prompt(40), prompt(50, seed=1)]
    downs = {f"mlp.experts.{expert}.down" for expert in range(8)}
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        kind = job._kind(read_config(folder), checkpoint)
        walk = Walk(kind, 64, checkpoint, Watched(torch.float32, HOST))
        quantizer = Quantizer(walk, Options("awq", group=32), torch.float32)
        batches, found = walk.enter(texts), []
        for index in range(4):
            layer = walk.layer(index, walk.layer_tensors(index))
            inputs = walk.watch(layer, partial(walk.run, layer, index, batches))
            batches = walk.run(layer, index, batches)
            floats = {name: one.float() for name, one in walk.layer_tensors(index).items()}
            factors = quantizer.fold(index, floats, floats, inputs)
            found.append({path for path in factors if path.endswith("down")})
    assert found == [set(), {"mlp.shared.down", *downs}, {"mlp.shared.down"}, set()]


def unbounded(mlp: MlpSpec | None) -> MlpSpec:
    assert mlp is not None
    return replace(mlp, limit=0.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda moe: replace(moe, expert=unbounded(moe.expert)),
        lambda moe: replace(moe, shared=unbounded(moe.shared)),
    ],
    ids=["routed", "shared"],
)
def test_each_bound_counts(
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[MoeSpec], MoeSpec],
) -> None:
    """Without it, other logits follow."""
    path = checkpoint("step3p7")
    cls: Any = family(read_config(path))
    spec = cls.read_config(read_config(path))
    layers = (
        replace(layer, mlp=change(layer.mlp)) if isinstance(layer.mlp, MoeSpec) else layer
        for layer in spec.layers
    )
    changed = replace(spec, layers=tuple(layers))
    with torch.inference_mode():
        expected = prefilled(path, cls, Group(), PLAIN)
        monkeypatch.setattr(cls, "read_config", lambda _: changed)
        assert (prefilled(path, cls, Group(), PLAIN) - expected).abs().max() > 0.01
