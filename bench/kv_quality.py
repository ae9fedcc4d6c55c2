"""What caches of fewer bits cost brook in quality: perplexity, tasks, and facts far back in a text.

    python bench/run.py kv_quality [--texts 24] [--count 25] [--device cpu]

For each --kv-dtype, perplexity over texts of up to 2,048 tokens (all tokens, and those of answers
to questions about facts far back alone), the divergence from `auto` (see `divergence`), and exact
match of greedy answers: of short tasks, and of
questions about one fact that 500 to 1,700 tokens of other text follow (a needle in a haystack).
Samples are those of examples/brook, of a seed that neither training nor its evaluation uses.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from penstock import LLM, Completion, SamplingParams
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
from examples.brook.data import CONTEXT, encode  # noqa: E402
from examples.brook.kinds import JUDGED, distant  # noqa: E402
from examples.brook.sample import Sample, prompt_and_answer  # noqa: E402

KV_DTYPES = ("auto", "fp8_e4m3", "fp8_e5m2", "int8", "int4")
DISTANCES = (500, 1000, 1500, 1700)
SEED = 5
SHORT = "short tasks"
TOP = 20  # logprobs of each token


@dataclass(frozen=True)
class Material:
    """What every dtype is measured on."""

    texts: list[list[int]]
    answers: list[list[bool]]
    """For each token of the texts, whether it is of an answer."""
    questions: list[tuple[str, list[int], str]]
    """(row of the table, prompt, answer)."""

    @classmethod
    def drawn(cls, texts: int, count: int) -> Material:
        """Returns `texts` texts, and `count` questions of each kind and distance."""
        tokenizer = Tokenizer.from_file(str(ROOT / "python/penstock/brook/tokenizer.json"))
        rng = Random(SEED)

        def size(text: str) -> int:
            return len(tokenizer.encode(text, add_special_tokens=False).ids)

        documents: list[tuple[list[int], list[bool]]] = []
        while len(documents) < texts:
            document = encode(tokenizer, distant.text(rng, CONTEXT - 60, size))
            if len(document[0]) < CONTEXT:
                documents.append(document)
        samples: list[tuple[str, Sample]] = []
        for makers in JUDGED.values():
            samples += [(SHORT, makers[i % len(makers)](rng, True)) for i in range(count)]
        for distance in DISTANCES:
            name = f"fact {distance:,} back"
            samples += [(name, distant.judged(rng, distance, size)) for _ in range(count)]
        questions = []
        for row, sample in samples:
            prompt, answer = prompt_and_answer(sample)
            ids = tokenizer.encode(prompt, add_special_tokens=False).ids
            questions.append((row, ids, answer))
        return cls([ids for ids, _ in documents], [mask for _, mask in documents], questions)


def scored(llm: LLM, material: Material) -> list[Completion]:
    """Returns the completions of the texts, with prompt logprobs."""
    return llm.generate(
        material.texts, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=TOP)
    )


def perplexities(done: list[Completion], material: Material) -> tuple[float, float]:
    """Returns the perplexity of all tokens of the texts, and of those of answers."""
    sums, counts = [0.0, 0.0], [0, 0]
    for completion, ids, answers in zip(done, material.texts, material.answers, strict=True):
        assert completion.prompt_logprobs is not None
        rows = zip(completion.prompt_logprobs, ids, answers, strict=True)
        for logprobs, token, is_answer in rows:
            if logprobs is None:  # of the first token
                continue
            for kind in range(1 + is_answer):
                sums[kind] -= logprobs[token].logprob
                counts[kind] += 1
    whole, of_answers = (math.exp(s / n) for s, n in zip(sums, counts, strict=True))
    return whole, of_answers


def divergence(done: list[Completion], exact: list[Completion]) -> float:
    """Returns the mean Kullback-Leibler divergence from `exact` in nats per token: of the
    distributions over the TOP tokens that both list, and all others together."""
    total, tokens = 0.0, 0
    for found, expected in zip(done, exact, strict=True):
        assert found.prompt_logprobs is not None and expected.prompt_logprobs is not None
        for theirs, ours in zip(expected.prompt_logprobs, found.prompt_logprobs, strict=True):
            if theirs is None or ours is None:  # of the first token
                continue
            both = [(theirs[t].logprob, ours[t].logprob) for t in theirs.keys() & ours.keys()]
            rest = [max(1 - sum(math.exp(pair[at]) for pair in both), 1e-9) for at in (0, 1)]
            both.append((math.log(rest[0]), math.log(rest[1])))
            total += sum(math.exp(p) * (p - q) for p, q in both)
            tokens += 1
    return total / tokens


def accuracies(llm: LLM, material: Material) -> dict[str, float]:
    """Returns the exact match of greedy answers by row of the table."""
    params = SamplingParams(temperature=0.0, max_tokens=100)
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    done = llm.generate([ids for _, ids, _ in material.questions], params)
    for completion, (row, _, answer) in zip(done, material.questions, strict=True):
        asked[row] += 1
        right[row] += completion.text == answer
    return {row: right[row] / asked[row] for row in asked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--count", type=int, default=25, help="questions of each kind")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    material = Material.drawn(options.texts, options.count)
    tokens = sum(map(len, material.texts))
    answers = sum(map(sum, material.answers))
    print(f"{len(material.texts)} texts, {tokens:,} tokens, {answers:,} of them in answers")
    rows = [SHORT, *(f"fact {distance:,} back" for distance in DISTANCES)]
    head = ["--kv-dtype", "divergence", "perplexity", "of answers", *rows]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    exact: list[Completion] = []
    for kv_dtype in KV_DTYPES:
        with LLM(progress=False, device=options.device, kv_dtype=kv_dtype) as llm:
            done = scored(llm, material)
            found = accuracies(llm, material)
        exact = exact or done  # of the first, `auto`
        whole, of_answers = perplexities(done, material)
        apart = 1e3 * divergence(done, exact)
        shares = " | ".join(f"{found[row]:.1%}" for row in rows)
        scores = f"{apart:.3f} | {whole:.4f} | {of_answers:.5f}"
        print(f"| `{kv_dtype}` | {scores} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
