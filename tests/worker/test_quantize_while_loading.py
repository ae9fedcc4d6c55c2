"""--quantize: floats become codes while they are loaded; contradictions are errors."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker, write
from local import LocalWorker, Refused
from penstock.config import read_config
from penstock.layers import Build, Head, Linear
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import RoundToNearest, read_methods, rtn
from penstock.weights import Checkpoint, load_weights
from quantized import HOST, WIDE, assert_equal_model, assert_equal_ranks, quantized
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("wide") / "model", **WIDE)


def int4(matrix: Tensor, group: int) -> Tensor:
    """The nearest of 16 steps from the lowest to the highest number of each group."""
    rows = []
    for row in matrix.float():
        for part in row.split(group):
            low, high = min(part.min().item(), 0.0), max(part.max().item(), 0.0)
            scale = torch.tensor((high - low) / 15, dtype=torch.float32)
            zero = torch.round(torch.tensor(-low) / scale)
            codes = torch.round(part / scale + zero).clamp(0, 15)
            rows.append((codes.double() - zero.double()) * scale.double())
    return torch.cat(rows).view(matrix.shape)


def int8(matrix: Tensor, group: int) -> Tensor:
    scales = matrix.float().abs().amax(1, keepdim=True) / 127
    return torch.round(matrix.float() / scales).double() * scales.double()


def fp8(matrix: Tensor, group: int) -> Tensor:
    scales = matrix.float().abs().amax(1, keepdim=True) / 448
    return (matrix.float() / scales).to(torch.float8_e4m3fn).double() * scales.double()


EXACT = {"int4": int4, "eetq": int8, "fp8": fp8}


def made(
    path: Path,
    directory: Path,
    quantize: str,
    group: Callable[[int], int],
    kept: str = "lm_head",
) -> tuple[Path, Path]:
    """The floats as they are, and what --quantize makes of them."""

    def convert(matrix: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {"weight": matrix}, EXACT[quantize](matrix, group(matrix.shape[1]))

    return quantized(path, directory, convert, None, kept)


@pytest.mark.parametrize("quantize", EXACT)
@pytest.mark.parametrize(
    "case",
    ["llama-biases", "phi3-window", "qwen3-moe", "minimax", "recurrent_gemma", "zamba", "zamba2"],
)
def test_tokens_are_those_of_the_quantized_weights(
    checkpoint: Callable[[str], Path], quantize: str, case: str, tmp_path: Path
) -> None:
    """Groups of 128 do not divide 64, 96 and 32 inputs: they become 64 and 32."""
    groups = {128: 128, 64: 64, 96: 32, 32: 32}
    pair = made(checkpoint(case), tmp_path, quantize, groups.__getitem__)
    assert_equal_model(*pair, quantize=quantize)


@pytest.mark.parametrize("quantize", EXACT)
@pytest.mark.parametrize(
    ("case", "floats"),
    [("jamba", "(dt|x)"), ("falcon_mamba", "(dt|x)"), ("kimi_linear", "([fg]_[ab]|b)")],
)
def test_matrices_of_decays_and_gates_stay_floats(
    checkpoint: Callable[[str], Path], case: str, floats: str, quantize: str, tmp_path: Path
) -> None:
    """Those of recurrent layers that yield strengths, steps, decays and gates."""
    kept, groups = rf"lm_head|\.{floats}_proj", {128: 128, 64: 64, 96: 32, 32: 32}
    pair = made(checkpoint(case), tmp_path, quantize, groups.__getitem__, kept)
    assert_equal_model(*pair, quantize=quantize)


def test_ranks_quantize_their_shares(wide: Path, tmp_path: Path) -> None:
    assert_equal_ranks(*made(wide, tmp_path, "int4", lambda inputs: 128), quantize="int4")


@pytest.mark.parametrize("quantize", ["eetq", "fp8"])
def test_ranks_scale_each_row_of_their_shares(wide: Path, tmp_path: Path, quantize: str) -> None:
    """A layer that follows another one's outputs is cut along its inputs: 256 or 512 here."""

    def convert(matrix: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        shares = matrix.chunk(2, 1) if matrix.shape[0] == 192 else [matrix]
        exact = torch.cat([EXACT[quantize](share, 0) for share in shares], 1)
        return {"weight": matrix}, exact

    path = write(tmp_path / "model", **{**WIDE, "hidden_size": 192, "head_dim": 64})
    assert_equal_ranks(*quantized(path, tmp_path, convert, None), quantize=quantize)


def test_embeddings_and_heads_stay_plain(checkpoint: Callable[[str], Path]) -> None:
    raw = read_config(checkpoint("llama2"))
    methods = read_methods(raw, torch.float32, HOST, "int4")
    cls: Any = family(raw)
    model = cls(cls.read_config(raw), Build(torch.float32, HOST, Group(), methods, 8))
    kinds = {
        path: layer.method is methods.plain
        for path, layer in model.walk()
        if isinstance(layer, Linear | Head)
    }
    assert {path for path, plain in kinds.items() if plain} == {"head"}


def test_floats_of_one_layer_at_a_time_are_in_memory(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("llama2")
    raw = read_config(path)
    methods = read_methods(raw, torch.float32, HOST, "int4")
    cls: Any = family(raw)
    model = cls(cls.read_config(raw), Build(torch.float32, HOST, Group(), methods, 8))
    most = 0

    def look(done: int, total: int) -> None:
        nonlocal most
        loaded = [
            block
            for block in model.blocks
            if any(not stored.data.is_meta for stored in block.mlp.down.stored.values())
        ]
        most = max(most, len(loaded))

    with Checkpoint(path) as files:
        load_weights(files, model, model.ignored, look)
    assert most == 1
    assert not any(block.mlp.down.stored for block in model.blocks)


def test_the_memory_of_weights_is_that_of_their_codes(checkpoint: Callable[[str], Path]) -> None:
    """As on a device that keeps codes."""
    path = checkpoint("llama2")
    raw = read_config(path)
    cls: Any = family(raw)

    def kept_bytes(quantize: str) -> int:
        methods = read_methods(raw, torch.float64, HOST, quantize)
        if methods.quantized is not None:
            methods.quantized.on_cpu = False  # type: ignore[attr-defined]
        model = cls(cls.read_config(raw), Build(torch.float64, HOST, Group(), methods, 8))
        with Checkpoint(path) as files:
            load_weights(files, model, model.ignored, lambda *_: None)
        return int(model.kept_bytes())

    # q, k, v and o are 64 x 64 (q, k and v fused); gate, up and down 96 x 64. Codes fill blocks of
    # 64 x 64; a group of 64 or 32 has a scale and a zero point.
    floats = 3 * (4 * 64 * 64 + 3 * 96 * 64) * 8
    codes = 3 * (4 + 3 + 2) * 64 * 64 // 2
    scales = 3 * (4 * 64 + 2 * 96 + 64 * 3) * 2 * 8
    assert kept_bytes("") - kept_bytes("int4") == floats - codes - scales


def test_smaller_groups_are_reported_once(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    rtn._report_group.cache_clear()
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        LocalWorker().load(checkpoint("llama2"), quantize="int4")
    lines = [record.getMessage() for record in caplog.records if "groups of" in record.message]
    assert lines == [
        "--quantize int4: layers of 64 inputs get groups of 64: larger ones do not divide them",
        "--quantize int4: layers of 96 inputs get groups of 32: larger ones do not divide them",
    ]


def test_inputs_that_no_group_divides_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "odd", model_type="llama", intermediate_size=80)
    with pytest.raises(Refused, match=r"groups of 128, 64, 32 inputs, .* has 80 inputs"):
        LocalWorker().load(path, quantize="int4")


@pytest.mark.parametrize("quantize", ["gptq", "awq", "marlin"])
def test_formats_of_checkpoints_need_one(checkpoint: Callable[[str], Path], quantize: str) -> None:
    with pytest.raises(Refused) as refused:
        LocalWorker().load(checkpoint("llama2"), quantize=quantize)
    text = str(refused.value)
    assert "INVALID_ARGUMENT" in text
    assert f"--quantize {quantize} needs a checkpoint in that format" in text
    assert "`penstock quantize`" in text and "int4" in text


def test_unknown_formats_are_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(Refused, match="quantize 'int3' is unknown; choose one of awq, "):
        LocalWorker().load(checkpoint("llama2"), quantize="int3")


def test_an_unknown_method_is_refused_by_name(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = with_config(checkpoint("llama2"), tmp_path, {"quant_method": "quip"})
    with pytest.raises(Refused, match="quant_method 'quip', which is not supported; supported: "):
        LocalWorker().load(path)


def with_config(path: Path, directory: Path, config: dict[str, Any]) -> Path:
    copy = Path(shutil.copytree(path, directory / "copy"))
    raw = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
    return copy


class LargestFloats(TorchDispatchMode):
    """The elements of the largest float tensor that an op makes."""

    elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if isinstance(one, Tensor) and one.is_floating_point():
                self.elements = max(self.elements, one.numel())
        return found


@pytest.mark.parametrize("quantize", EXACT)
def test_few_rows_at_a_time_are_rounded_in_float32(
    quantize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise several copies of the largest matrix would decide what fits a GPU."""
    method = read_methods({}, torch.bfloat16, HOST, quantize).quantized
    assert isinstance(method, RoundToNearest)
    matrix = torch.randn(37, 256, dtype=torch.bfloat16)
    whole = method.read({"weight": matrix})
    monkeypatch.setattr(rtn, "CHUNK", 1000)  # 3 rows
    with LargestFloats() as largest:
        found = method.read({"weight": matrix})
    assert 0 < largest.elements <= 1000
    for part, expected in zip(found, whole, strict=True):
        assert part is expected is None or torch.equal(part, expected)
    monkeypatch.setattr(rtn, "CHUNK", 100)  # less than a row
    assert torch.equal(method.read({"weight": matrix}).codes, whole.codes)
