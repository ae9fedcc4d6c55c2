"""Measure what each weight format costs: divergence from bf16, perplexity and accuracies of brook.

python -m examples.brook.quality [--count 24] [--json FILE] [--plot FILE] [--only FORMAT ...]
python -m examples.brook.quality --from FILE [--plot FILE]    # the table of earlier results

Matrices of attention and feed-forward layers are rounded to the format and back: by the methods
that load checkpoints, or, for calibrated formats, by `penstock quantize`. The engine, on the CPU in
float32, answers held-out instances greedily; transformers scores held-out answers.
"""

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TypeAlias

import torch
from penstock import LLM, SamplingParams
from penstock.quant import FourBit, Int8, LinearMethod, RoundToNearest, Transposed
from penstock.quant.grid import Grid, round_to_nearest
from penstock.quant.rtn import nearest
from penstock.quantize import Job, Options, quantize
from penstock.quantize.layouts import LAYOUTS
from penstock_kernels.packed_linear import Kind
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import kl_div, nll_loss
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from .data import Document, encode
from .evaluate import SHIPPED
from .kinds import JUDGED, SHORT, distant
from .quality_table import Row, plot, table
from .sample import Sample, prompt_and_answer, segments

MATRICES = re.compile(r"model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight")
DISTANCES = (500, 1500)
SCORED = 1000  # samples whose answers are scored
CALIBRATION = 256  # samples, for formats that are calibrated
BATCH = 32
_SEED = 3
PLAIN = Transposed(torch.float32, torch.device("cpu"))

Round: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Format:
    """A weight format: bits per weight, scales and zero points included, and how it rounds."""

    bits: float
    how: Round | Options
    """A function of a matrix, or what `penstock quantize` does to the model."""


def loaded(method: LinearMethod) -> Round:
    """A method that quantizes while loading."""
    return lambda matrix: method.dequantize(method.finish({"weight": matrix.contiguous()}))


def _rtn(bits: int, group: int) -> Round:
    """Integers without zero points, as `penstock quantize --method rtn` stores them."""
    grid, options = Grid(bits, True, torch.bfloat16, 1), Options("rtn", bits, group)
    layout = LAYOUTS["rtn"](options, torch.bfloat16)
    return lambda matrix: layout.matrix(layout.store(round_to_nearest(matrix.float(), grid, group)))


def _double_nf4(matrix: Tensor) -> Tensor:
    """NF4 whose scales are float8, as the library's checkpoints have it ("double quantization")."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    codes, state = quantize_4bit(matrix.float(), compress_statistics=True, quant_type="nf4")
    found: Tensor = dequantize_4bit(codes, state)
    return found


def _fp8(rows: int, columns: int) -> Round:
    """Float8 e4m3, with a scale per block of at most this size; 0: all."""

    def rounded(matrix: Tensor) -> Tensor:
        outputs, inputs = matrix.shape
        height, width = rows or outputs, columns or inputs
        blocks = matrix.float().view(outputs // height, height, inputs // width, width)
        scales = blocks.abs().amax((1, 3), keepdim=True) / 448
        values = (blocks / scales).to(torch.float8_e4m3fn).float()
        return (values * scales).view(matrix.shape)

    return rounded


def _fp4(group: int, scales: Callable[[Tensor], Tensor]) -> Round:
    """Float4 e2m1; `scales` makes scales of the groups' largest magnitudes."""

    def rounded(matrix: Tensor) -> Tensor:
        groups = matrix.float().view(len(matrix), -1, group)
        found = scales(groups.abs().amax(-1))[..., None]
        return (Kind.FP4.values(nearest(groups / found, Kind.FP4)) * found).flatten(1)

    return rounded


def _powers(largest: Tensor) -> Tensor:
    """Scales of MXFP4, e8m0 (OCP microscaling formats, 6.3): 4 is the largest power of e2m1."""
    return torch.exp2(largest.clamp(min=2.0**-120).log2().floor() - 2)


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
        "int8, groups of 128": Format(_bits(8, 128, False), _rtn(8, 128)),
        "fp8, per output": Format(8, loaded(RoundToNearest(Kind.FP8, PLAIN, 0))),
        "fp8, blocks of 128 x 128": Format(8, _fp8(128, 128)),
        "fp8, per tensor": Format(8, _fp8(0, 0)),
    }
    for group in (32, 64, 128, 0):
        bits = _bits(4, group, True)
        rounding = loaded(RoundToNearest(Kind.INT4, PLAIN, group))
        found[f"int4 with zero points, {_groups(group)}"] = Format(bits, rounding)
        rounding = loaded(RoundToNearest(Kind.INT4, PLAIN, group, search=True))
        found[f"int4 with least error, {_groups(group)}"] = Format(bits, rounding)
    for group in (32, 64, 128, 0):
        found[f"int4, {_groups(group)}"] = Format(_bits(4, group, False), _rtn(4, group))
    found |= {
        "nf4, groups of 64": Format(4.5, loaded(FourBit(PLAIN, "nf4"))),
        "nf4 with quantized scales": Format(4 + 8 / 64 + 32 / 64 / 256, _double_nf4),
        "fp4 (bitsandbytes), groups of 64": Format(4.5, loaded(FourBit(PLAIN, "fp4"))),
        "nvfp4, groups of 16": Format(4.5, _fp4(16, _float8)),
        "mxfp4, groups of 32": Format(4.25, _fp4(32, _powers)),
    }
    calibrated = [Options("gptq", group=group) for group in (32, 64, 128, 0)]
    calibrated += [Options("gptq", group=group, act_order=True) for group in (32, 64, 128, 0)]
    calibrated += [Options("gptq", group=group, mse=True) for group in (32, 64, 128)]
    calibrated += [Options("gptq", act_order=True, mse=True)]
    calibrated += [Options("gptq", symmetric=False), Options("gptq", bits=8)]
    calibrated += [Options("awq", group=group) for group in (32, 64, 128)]
    for one in calibrated:
        zeros = one.method == "awq" or not one.symmetric
        name = f"int{one.bits} by {one.method.upper()}"
        name += " in activation order" if one.act_order else ""
        name += " with least error" if one.mse else ""
        name += " with zero points" if zeros else ""
        bits = _bits(one.bits, one.group, zeros)
        found[f"{name}, {_groups(one.group)}"] = Format(bits, replace(one, samples=CALIBRATION))
    return found


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


class Questions:
    """Held-out instances: the same for every format."""

    def __init__(self, count: int) -> None:
        tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
        rng = Random(_SEED)

        def length(text: str) -> int:
            return len(tokenizer.encode(text, add_special_tokens=False).ids)

        self.asked: list[Sample] = []
        for makers in JUDGED.values():
            self.asked += [makers[index % len(makers)](rng, True) for index in range(count)]
        for distance in DISTANCES:
            self.asked += [distant.judged(rng, distance, length) for _ in range(count // 2)]
        pairs = [prompt_and_answer(one) for one in self.asked]
        self.prompts = [tokenizer.encode(one, add_special_tokens=False).ids for one, _ in pairs]
        self.answers = [right for _, right in pairs]
        self.limits = [length(right) + 2 for right in self.answers]
        makers, weights = zip(*SHORT, strict=True)
        drawn = [maker(rng, True) for maker in rng.choices(makers, weights, k=SCORED)]
        self.scored = [encode(tokenizer, one) for one in drawn]


def texts(count: int) -> str:
    """Lines of samples that brook was trained on, special tokens included."""
    rng, makers = Random(_SEED), list(zip(*SHORT, strict=True))
    drawn = [maker(rng, False) for maker in rng.choices(makers[0], makers[1], k=4 * count)]
    lines = ["".join(text for text, _ in segments(one)[1:]) for one in drawn]
    return "\n".join([line for line in lines if "\n" not in line][:count]) + "\n"


def answered(folder: Path, questions: Questions) -> dict[str, float]:
    """Accuracy of greedy answers, by kind."""
    params = [SamplingParams(max_tokens=most, temperature=0) for most in questions.limits]
    with LLM(str(folder), dtype="float32") as llm:
        given = llm.generate(questions.prompts, params)
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for sample, answer, expected in zip(questions.asked, given, questions.answers, strict=True):
        asked[sample.kind] += 1
        right[sample.kind] += answer.text == expected
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


class Scorer:
    """Scores the answers' tokens of documents, and compares with bf16's scores."""

    def __init__(self, documents: list[Document]) -> None:
        ordered = sorted(documents, key=lambda one: len(one[0]))
        self.batches = [ordered[at : at + BATCH] for at in range(0, len(ordered), BATCH)]
        with tempfile.TemporaryDirectory() as directory:
            write(Path(directory), FORMATS["bf16"])
            self.exact = [logprobs for logprobs, _ in self._scores(Path(directory))]

    def __call__(self, folder: Path) -> tuple[float, float]:
        """Perplexity, and the mean Kullback-Leibler divergence of the distributions from bf16's,
        in nats per token."""
        loss, divergence, tokens = 0.0, 0.0, 0
        for exact, (found, labels) in zip(self.exact, self._scores(folder), strict=True):
            loss += float(nll_loss(found, labels, reduction="sum"))
            divergence += float(kl_div(found, exact, reduction="sum", log_target=True))
            tokens += len(labels)
        return math.exp(loss / tokens), divergence / tokens

    @torch.inference_mode()
    def _scores(self, folder: Path) -> Iterator[tuple[Tensor, Tensor]]:
        """Log-probabilities [tokens, vocabulary] and labels [tokens] of each batch."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for batch in self.batches:
            ids = pad_sequence([torch.tensor(one) for one, _ in batch], batch_first=True)
            counted = pad_sequence([torch.tensor(one) for _, one in batch], batch_first=True)[:, 1:]
            yield model(ids).logits[:, :-1][counted].log_softmax(-1), ids[:, 1:][counted]


def measure(chosen: Format, questions: Questions, scorer: Scorer) -> Row:
    """Measures a format."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write(folder, chosen)
        perplexity, divergence = scorer(folder)
        accuracies = answered(folder, questions)
    return {
        "bits": chosen.bits,
        "perplexity": perplexity,
        "divergence": divergence,
        "accuracies": accuracies,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=24, help="instances of each kind")
    parser.add_argument("--only", nargs="*", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--from", dest="earlier", type=Path, help="results of an earlier --json")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--plot", type=Path, help="where to draw them")
    chosen = parser.parse_args()
    rows: dict[str, Row] = json.loads(chosen.earlier.read_text()) if chosen.earlier else {}
    if not rows:
        questions = Questions(chosen.count)
        scorer = Scorer(questions.scored)
        for name in chosen.only:
            rows[name] = measure(FORMATS[name], questions, scorer)
            print(f"{name}: {rows[name]}", file=sys.stderr, flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if chosen.plot:
        plot(rows, chosen.plot)
    print(table(rows))


if __name__ == "__main__":
    main()
