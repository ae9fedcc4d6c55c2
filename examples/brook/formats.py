"""The weight formats whose cost `quality.py` measures.

Matrices of attention and feed-forward layers are rounded to the format and back: by the methods
that load checkpoints, or, for calibrated formats, by `penstock quantize`.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import TypeAlias

import torch
from penstock.quant import FourBit, Int8, LinearMethod, RoundToNearest, Transposed
from penstock.quant.grid import Grid, round_to_nearest
from penstock.quant.rtn import nearest
from penstock.quantize import Job, Options, quantize
from penstock.quantize.layouts import LAYOUTS
from penstock_kernels.packed_linear import Kind
from safetensors.torch import load_file, save_file
from torch import Tensor

from .evaluate import SHIPPED
from .kinds import SHORT
from .sample import segments

MATRICES = re.compile(r"model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight")
GROUPS = (32, 64, 128, 0)  # inputs that share a scale; 0: all of an output
CALIBRATION = 256  # samples, for formats that are calibrated
_SEED = 3
PLAIN = Transposed(torch.float32, torch.device("cpu"))

Round: TypeAlias = Callable[[Tensor], Tensor]
Scales: TypeAlias = Callable[[Tensor], Tensor]
"""Makes scales of the largest magnitudes."""


@dataclass(frozen=True)
class Format:
    """A weight format: bits per weight, scales and zero points included, and how it rounds."""

    bits: float
    how: Round | Options
    """A function of a matrix, or what `penstock quantize` does to the model."""


def loaded(method: LinearMethod) -> Round:
    """A method that quantizes while loading."""
    return lambda matrix: method.dequantize(method.finish({"weight": matrix.contiguous()}))


def _rtn(bits: int, group: int, mse: bool = False) -> Round:
    """Integers without zero points, as `penstock quantize --method rtn` stores them."""
    grid, options = Grid(bits, True, torch.bfloat16, 1, search=mse), Options("rtn", bits, group)
    layout = LAYOUTS["rtn"](options, torch.bfloat16)
    return lambda matrix: layout.matrix(layout.store(round_to_nearest(matrix.float(), grid, group)))


def _double_nf4(matrix: Tensor) -> Tensor:
    """NF4 whose scales are float8, as the library's checkpoints have it ("double quantization")."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    codes, state = quantize_4bit(matrix.float(), compress_statistics=True, quant_type="nf4")
    found: Tensor = dequantize_4bit(codes, state)
    return found


def _fp8(rows: int, columns: int, scales: Scales = lambda largest: largest / 448) -> Round:
    """Float8 e4m3, with a scale per block of at most this size; 0: all. Larger numbers saturate."""

    def rounded(matrix: Tensor) -> Tensor:
        outputs, inputs = matrix.shape
        height, width = rows or outputs, columns or inputs
        blocks = matrix.float().view(outputs // height, height, inputs // width, width)
        found = scales(blocks.abs().amax((1, 3), keepdim=True))
        values = (blocks / found).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        return (values * found).view(matrix.shape)

    return rounded


def _fp4(group: int, scales: Scales) -> Round:
    """Float4 e2m1, with a scale per group."""

    def rounded(matrix: Tensor) -> Tensor:
        groups = matrix.float().view(len(matrix), -1, group)
        found = scales(groups.abs().amax(-1))[..., None]
        return (Kind.FP4.values(nearest(groups / found, Kind.FP4)) * found).flatten(1)

    return rounded


def _powers(exponent: int) -> Scales:
    """Scales e8m0 (OCP microscaling formats, 6.3) of numbers whose largest power of two has this
    exponent: 2 of e2m1, 8 of e4m3."""
    return lambda largest: torch.exp2(largest.clamp(min=2.0**-110).log2().floor() - exponent)


def _float8(largest: Tensor) -> Tensor:
    """Scales of NVFP4: e4m3, times a scale of the whole matrix."""
    whole = largest.amax() / (6 * 448)
    return (largest / 6 / whole).to(torch.float8_e4m3fn).float().clamp(min=2.0**-9) * whole


def _groups(group: int) -> str:
    return f"groups of {group}" if group else "per output"


def _bits(bits: int, group: int, zeros: bool) -> float:
    """With scales of 16 bits."""
    return bits + (16 + (bits if zeros else 0)) / group if group else float(bits)


def _formats() -> dict[str, Format]:
    found = {
        "bf16": Format(16, lambda matrix: matrix.float()),
        "int8 (eetq), per output": Format(
            8, loaded(RoundToNearest(Kind.INT8, PLAIN, 0, symmetric=True))
        ),
        "int8 (LLM.int8), per output": Format(8, loaded(Int8(PLAIN))),
        "mxfp8, groups of 32": Format(8.25, _fp8(1, 32, _powers(8))),
        "fp8, per output": Format(8, loaded(RoundToNearest(Kind.FP8, PLAIN, 0))),
        "fp8, blocks of 128 x 128": Format(8, _fp8(128, 128)),
        "fp8, per tensor": Format(8, _fp8(0, 0)),
    }
    for group in GROUPS:
        bits = _bits(4, group, True)
        rounding = loaded(RoundToNearest(Kind.INT4, PLAIN, group))
        found[f"int4 with zero points, {_groups(group)}"] = Format(bits, rounding)
        rounding = loaded(RoundToNearest(Kind.INT4, PLAIN, group, search=True))
        found[f"int4 with least error, {_groups(group)}"] = Format(bits, rounding)
        found[f"int4, {_groups(group)}"] = Format(_bits(4, group, False), _rtn(4, group))
        rounding = _rtn(4, group, mse=True)
        name = f"int4 without zero points with least error, {_groups(group)}"
        found[name] = Format(_bits(4, group, False), rounding)
        if group:
            found[f"int8, {_groups(group)}"] = Format(_bits(8, group, False), _rtn(8, group))
    found |= {
        "nf4, groups of 64": Format(4.5, loaded(FourBit(PLAIN, "nf4"))),
        "nf4 with quantized scales": Format(4 + 8 / 64 + 32 / 64 / 256, _double_nf4),
        "fp4 (bitsandbytes), groups of 64": Format(4.5, loaded(FourBit(PLAIN, "fp4"))),
        "nvfp4, groups of 16": Format(4.5, _fp4(16, _float8)),
        "mxfp4, groups of 32": Format(4.25, _fp4(32, _powers(2))),
    }
    return found | {_name(one): _calibrated(one) for one in _calibrated_options()}


def _calibrated_options() -> Iterator[Options]:
    for group in GROUPS:
        for act_order, mse in product((False, True), repeat=2):
            yield Options("gptq", group=group, act_order=act_order, mse=mse)
        yield Options("gptq", group=group, symmetric=False)
        yield Options("gptq", bits=8, group=group)
        yield Options("awq", group=group)


def _name(one: Options) -> str:
    name = f"int{one.bits} by {one.method.upper()}"
    name += " in activation order" if one.act_order else ""
    name += " with least error" if one.mse else ""
    name += " with zero points" if _has_zeros(one) else ""
    return f"{name}, {_groups(one.group)}"


def _calibrated(one: Options) -> Format:
    bits = _bits(one.bits, one.group, _has_zeros(one))
    return Format(bits, replace(one, samples=CALIBRATION))


def _has_zeros(one: Options) -> bool:
    return one.method == "awq" or not one.symmetric


FORMATS = _formats()


def write(folder: Path, chosen: Format) -> None:
    """Writes brook with its matrices rounded, in float32."""
    for file in SHIPPED.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    tensors = load_file(SHIPPED / "model.safetensors")
    if isinstance(chosen.how, Options):
        tensors |= _quantized(chosen.how, tensors)
    else:
        matrices = [name for name in tensors if MATRICES.fullmatch(name)]
        tensors |= {name: chosen.how(tensors[name]) for name in matrices}
    floats = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    save_file(floats, folder / "model.safetensors", metadata={"format": "pt"})


def _quantized(options: Options, names: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of brook that `penstock quantize` wrote, matrices as floats."""
    stored: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as directory:
        calibration, out = Path(directory) / "texts", Path(directory) / "out"
        calibration.write_text(texts(CALIBRATION), encoding="utf-8")
        quantize(Job(SHIPPED, out, options, calibration))
        for file in out.glob("*.safetensors"):
            stored |= load_file(file)
    layout = LAYOUTS[options.method](options, torch.bfloat16)
    found = {}
    for name in names:
        module = name.removesuffix("weight")
        parts = {n.removeprefix(module): t for n, t in stored.items() if n.startswith(module)}
        found[name] = layout.matrix(parts) if MATRICES.fullmatch(name) else stored[name]
    return found


def texts(count: int) -> str:
    """Lines of samples that brook was trained on, special tokens included."""
    rng, makers = Random(_SEED), list(zip(*SHORT, strict=True))
    drawn = [maker(rng, False) for maker in rng.choices(makers[0], makers[1], k=4 * count)]
    lines = ["".join(text for text, _ in segments(one)[1:]) for one in drawn]
    return "\n".join([line for line in lines if "\n" not in line][:count]) + "\n"
