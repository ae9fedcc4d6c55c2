"""Measure what each weight format costs: divergence from bf16, perplexity and accuracies of brook.

python -m examples.brook.quality [--count 40] [--json FILE] [--plot FILE] [--only FORMAT ...]
python -m examples.brook.quality --from FILE [--plot FILE]    # the table of earlier results
python -m examples.brook.quality --texts FILE    # writes calibration texts for `penstock quantize`
python -m examples.brook.quality --only --quantized FOLDER ...    # measures what that wrote

Matrices of attention and feed-forward layers are rounded to the format and back. The engine, on the
CPU in float32, answers held-out instances greedily; transformers scores held-out answers.
"""

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeAlias, TypedDict

import torch
from penstock import LLM, SamplingParams
from penstock.quant.rtn import nearest, round_to_nearest, symmetric
from penstock.quantize.layouts import LAYOUTS
from penstock.quantize.options import Options
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
from .sample import Sample, prompt_and_answer, segments

MATRICES = re.compile(r"model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight")
DISTANCES = (500, 1500)
SCORED = 1000  # samples whose answers are scored
BATCH = 32
_SEED = 3

Round: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Format:
    """A weight format: bits per weight, scales and zero points included, and its rounding."""

    bits: float
    round: Callable[..., Tensor]
    """Of a matrix, or of a tensor's name."""
    named: bool = False


class Row(TypedDict):
    """What was measured of a format."""

    bits: float
    perplexity: float
    divergence: float
    accuracies: dict[str, float]


def _values(codes: Tensor, kind: Kind, scales: Tensor, zeros: Tensor | float) -> Tensor:
    """Numbers of codes [outputs, groups, group]; scales and zero points [outputs, groups]."""
    if isinstance(zeros, Tensor):
        zeros = zeros[..., None]
    return ((kind.values(codes) - zeros) * scales[..., None]).flatten(1)


def _grouped(kind: Kind, group: int) -> Round:
    def rounded(matrix: Tensor) -> Tensor:
        found = round_to_nearest(matrix, kind, group)
        zeros = 0.0 if found.zeros is None else found.zeros.t()
        scales = found.scales.t()
        return _values(found.codes.view(*scales.shape, -1), kind, scales, zeros)

    return rounded


def _int8(matrix: Tensor) -> Tensor:
    found = symmetric(matrix, Kind.INT8)
    return _values(found.codes[:, None], Kind.INT8, found.scales.t(), 128.0)


def _fp4(group: int, scales: Callable[[Tensor], Tensor]) -> Round:
    """Float4 e2m1; `scales` makes scales of the groups' largest magnitudes."""

    def rounded(matrix: Tensor) -> Tensor:
        groups = matrix.float().view(len(matrix), -1, group)
        found = scales(groups.abs().amax(-1))
        codes = nearest(groups / found[..., None], Kind.FP4)
        return _values(codes, Kind.FP4, found, 0.0)

    return rounded


def _powers(largest: Tensor) -> Tensor:
    """Scales of MXFP4, e8m0 (OCP microscaling formats, 6.3): 4 is the largest power of e2m1."""
    return torch.exp2(largest.clamp(min=2.0**-120).log2().floor() - 2)


def _float8(largest: Tensor) -> Tensor:
    """Scales of NVFP4: e4m3, times a scale of the whole matrix."""
    whole = largest.amax() / (6 * 448)
    return (largest / 6 / whole).to(torch.float8_e4m3fn).float().clamp(min=2.0**-9) * whole


FORMATS = {
    "bf16": Format(16, lambda matrix: matrix.float()),
    "int8, per output": Format(8, _int8),
    "fp8, per output": Format(8, _grouped(Kind.FP8, 0)),
    "int4, groups of 32": Format(5, _grouped(Kind.INT4, 32)),
    "int4, groups of 64": Format(4.5, _grouped(Kind.INT4, 64)),
    "int4, groups of 128": Format(4.25, _grouped(Kind.INT4, 128)),
    "int4, per output": Format(4, _grouped(Kind.INT4, 0)),
    "nvfp4, groups of 16": Format(4.5, _fp4(16, _float8)),
    "mxfp4, groups of 32": Format(4.25, _fp4(32, _powers)),
}


def write(folder: Path, chosen: Format) -> None:
    """Writes brook with its matrices rounded, in float32."""
    for file in SHIPPED.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    tensors = {}
    for name, tensor in load_file(SHIPPED / "model.safetensors").items():
        if chosen.named:
            tensor = chosen.round(name)
        elif MATRICES.fullmatch(name):
            tensor = chosen.round(tensor)
        tensors[name] = tensor.float()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


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


def written(folder: Path) -> tuple[str, Format]:
    """The name and the rounding of a folder that `penstock quantize` wrote from brook."""
    options = Options(**json.loads((folder / "quantize.json").read_text())["settings"])
    tensors: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    layout = LAYOUTS[options.method](options, torch.bfloat16)
    group, bits = options.group, float(options.bits)
    if group:
        bits += (16 + (0 if options.symmetric and options.method != "awq" else bits)) / group

    def rounded(name: str) -> Tensor:
        module = name.removesuffix(".weight") + "."
        parts = {n.removeprefix(module): t for n, t in tensors.items() if n.startswith(module)}
        return layout.matrix(parts) if module.endswith("_proj.") else parts["weight"]

    return f"{options.method} int{options.bits}, groups of {group}", Format(bits, rounded, True)


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


def table(rows: dict[str, Row]) -> str:
    """Markdown: a line per format; divergences are per 1,000 tokens, and tasks that all formats
    answer alike share a column."""
    same: dict[tuple[float, ...], list[str]] = defaultdict(list)
    for kind in next(iter(rows.values()))["accuracies"]:
        same[tuple(row["accuracies"][kind] for row in rows.values())].append(kind)
    columns = list(same.items())
    titles = [", ".join(kinds) for _, kinds in columns]
    lines = [f"| format | bits | divergence | perplexity | all | {' | '.join(titles)} |"]
    lines.append("|---" * (5 + len(titles)) + "|")
    for index, (name, row) in enumerate(rows.items()):
        mean = sum(row["accuracies"].values()) / len(row["accuracies"])
        cells = [f"{column[index]:.0%}" for column, _ in columns]
        first = f"| {name} | {row['bits']:.3g} | {1e3 * row['divergence']:.3f}"
        first += f" | {row['perplexity']:.4f} | {mean:.1%}"
        lines.append(f"{first} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: dict[str, Row], path: Path) -> None:
    """The divergences from bf16."""
    from matplotlib.figure import Figure

    found = {
        f"{name} ({row['bits']:.3g} bits)": 1e3 * row["divergence"]
        for name, row in rows.items()
        if name != "bf16"
    }
    figure = Figure(figsize=(7, 0.6 + 0.32 * len(found)), layout="constrained")
    axis = figure.subplots()
    bars = axis.barh(list(found), list(found.values()), color="#1f77b4")
    axis.bar_label(bars, fmt=" %.3f")
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlabel("divergence from bf16, nats per 1,000 tokens")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="instances of each kind")
    parser.add_argument("--only", nargs="*", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--quantized", nargs="+", type=Path, default=[])
    parser.add_argument("--texts", type=Path, help="where to write calibration texts")
    parser.add_argument("--from", dest="earlier", type=Path, help="results of an earlier --json")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--plot", type=Path, help="where to draw them")
    chosen = parser.parse_args()
    if chosen.texts:
        chosen.texts.write_text(texts(256), encoding="utf-8")
        return
    rows: dict[str, Row] = json.loads(chosen.earlier.read_text()) if chosen.earlier else {}
    if not rows or chosen.quantized:
        questions = Questions(chosen.count)
        scorer = Scorer(questions.scored)
        formats = {} if rows else {name: FORMATS[name] for name in chosen.only}
        formats |= dict(map(written, chosen.quantized))
        for name, one in formats.items():
            rows[name] = measure(one, questions, scorer)
            print(f"{name}: {rows[name]}", file=sys.stderr, flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if chosen.plot:
        plot(rows, chosen.plot)
    print(table(rows))


if __name__ == "__main__":
    main()
