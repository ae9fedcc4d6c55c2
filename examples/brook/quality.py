"""Measure what each weight format costs: divergence from bf16, perplexity and accuracies of brook.

python -m examples.brook.quality [--count 24] [--json FILE] [--plot FILE] [--only FORMAT ...]

FILE gets the results of each format at once; formats that it has already are not measured again.

`formats.py` rounds brook's matrices; transformers scores held-out answers on the CPU in float32.
"""

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import kl_div, nll_loss
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedModel

from .data import Document, encode
from .evaluate import SHIPPED
from .formats import FORMATS, Format, write
from .kinds import JUDGED, SHORT, distant
from .quality_table import Results, Row, plot, table
from .sample import END, Sample, prompt_and_answer

DISTANCES = (500, 1500)
SCORED = 1000  # samples whose answers are scored
TOKENS = 4096  # of a batch, about
_SEED = 3


class Questions:
    """Held-out instances: the same for every format."""

    def __init__(self, count: int) -> None:
        tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
        rng = Random(_SEED)

        def tokens(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False).ids

        def length(text: str) -> int:
            return len(tokens(text))

        asked: list[Sample] = []
        for makers in JUDGED.values():
            asked += [makers[index % len(makers)](rng, True) for index in range(count)]
        for distance in DISTANCES:
            asked += [distant.judged(rng, distance, length) for _ in range(count // 2)]
        self.asked: list[tuple[str, Document]] = []
        for one in asked:
            prompt, right = map(tokens, prompt_and_answer(one))
            end = tokens(END)
            flags = [False] * len(prompt) + [True] * (len(right) + len(end))
            self.asked.append((one.kind, (prompt + right + end, flags)))
        makers, weights = zip(*SHORT, strict=True)
        drawn = [maker(rng, True) for maker in rng.choices(makers, weights, k=SCORED)]
        self.scored = [encode(tokenizer, one) for one in drawn]


@dataclass(frozen=True)
class Batch:
    """Documents of like length."""

    ids: Tensor
    """[documents, tokens], padded at the end."""
    counted: Tensor
    """[documents, tokens - 1] bool: whether the next token is of an answer."""
    members: list[int]
    """Positions in the list of documents."""

    @classmethod
    def of(cls, documents: list[Document]) -> list["Batch"]:
        """Returns all documents in batches."""
        order = sorted(range(len(documents)), key=lambda index: len(documents[index][0]))
        batches: list[list[int]] = [[]]
        for index in order:
            if len(batches[-1]) * len(documents[index][0]) >= TOKENS:
                batches.append([])
            batches[-1].append(index)
        return [cls._padded(documents, members) for members in batches]

    @classmethod
    def _padded(cls, documents: list[Document], members: list[int]) -> "Batch":
        ids = [torch.tensor(documents[index][0]) for index in members]
        flags = [torch.tensor(documents[index][1]) for index in members]
        counted = pad_sequence(flags, batch_first=True)[:, 1:]
        return cls(pad_sequence(ids, batch_first=True), counted, members)

    @property
    def labels(self) -> Tensor:
        """The tokens of answers [labels]."""
        return self.ids[:, 1:][self.counted]

    @torch.inference_mode()
    def logits(self, model: PreTrainedModel) -> Tensor:
        """Of the answers' tokens [labels, vocabulary]."""
        # Most tokens are of questions: their logits would take as long as a layer.
        hidden = model.model(self.ids).last_hidden_state[:, :-1][self.counted]
        found: Tensor = model.lm_head(hidden)
        return found


class Judge:
    """Measures models on the same questions, and compares them with bf16."""

    def __init__(self, questions: Questions) -> None:
        self.kinds = [kind for kind, _ in questions.asked]
        self.asked = Batch.of([document for _, document in questions.asked])
        self.scored = Batch.of(questions.scored)
        model = self.model(FORMATS["bf16"])
        self.exact = [batch.logits(model).log_softmax(-1) for batch in self.scored]

    @staticmethod
    def model(chosen: Format) -> PreTrainedModel:
        """Brook with its matrices rounded, in float32."""
        with tempfile.TemporaryDirectory() as directory:
            write(Path(directory), chosen)
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        return cast(PreTrainedModel, model.eval())

    def scores(self, model: PreTrainedModel) -> tuple[float, float]:
        """Perplexity, and the mean Kullback-Leibler divergence of the distributions from bf16's,
        in nats per token."""
        loss, divergence, tokens = 0.0, 0.0, 0
        for batch, exact in zip(self.scored, self.exact, strict=True):
            found, labels = batch.logits(model).log_softmax(-1), batch.labels
            loss += float(nll_loss(found, labels, reduction="sum"))
            divergence += float(kl_div(found, exact, reduction="sum", log_target=True))
            tokens += len(labels)
        return math.exp(loss / tokens), divergence / tokens

    def accuracies(self, model: PreTrainedModel) -> dict[str, float]:
        """Shares of right greedy answers, by kind. An answer is right if each of its tokens is the
        most likely one after those before it, so that all can be computed at once."""
        right: Counter[str] = Counter()
        for batch in self.asked:
            wrong = torch.zeros_like(batch.counted)
            wrong[batch.counted] = batch.logits(model).argmax(-1) != batch.labels
            for index, failed in zip(batch.members, wrong.any(1).tolist(), strict=True):
                right[self.kinds[index]] += not failed
        asked = Counter(self.kinds)
        return {kind: right[kind] / asked[kind] for kind in sorted(asked)}

    def row(self, chosen: Format) -> Row:
        """Measures a format."""
        model = self.model(chosen)
        perplexity, divergence = self.scores(model)
        return {
            "bits": chosen.bits,
            "perplexity": perplexity,
            "divergence": divergence,
            "accuracies": self.accuracies(model),
        }


def measured(names: list[str], count: int, file: Path | None) -> dict[str, Row]:
    """Measures formats that `file` lacks, and adds each to it. Raises ValueError if its results are
    of another count."""
    found: Results = {"count": count, "rows": {}}
    if file and file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["count"] != count:
            raise ValueError(f"{file} has results of --count {found['count']}, found {count}")
    missing = [name for name in names if name not in found["rows"]]
    if missing:
        judge = Judge(Questions(count))
    for name in missing:
        found["rows"][name] = judge.row(FORMATS[name])
        print(f"{name}: {found['rows'][name]}", file=sys.stderr, flush=True)
        if file:
            file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return {name: found["rows"][name] for name in names}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=24, help="instances of each kind")
    parser.add_argument("--only", nargs="*", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--json", type=Path, help="the file of results")
    parser.add_argument("--plot", type=Path, help="where to draw them")
    chosen = parser.parse_args()
    try:
        rows = measured(chosen.only, chosen.count, chosen.json)
    except ValueError as error:
        parser.error(str(error))
    if chosen.plot:
        plot(rows, chosen.plot)
    print(table(rows))


if __name__ == "__main__":
    main()
