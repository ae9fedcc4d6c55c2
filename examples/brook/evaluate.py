"""Measure a brook model folder on held-out instances: exact match of greedy answers, by kind.

python -m examples.brook.evaluate [FOLDER] [--count 200] [--device cuda] [--json FILE]
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from random import Random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from .kinds import JUDGED, distant
from .sample import Sample, prompt_and_answer

SHIPPED = Path(__file__).resolve().parents[2] / "python/penstock/brook"
DISTANCES = (500, 1000, 1500, 1700)
_SEED = 2
_TOKENS_AT_ONCE = 120_000

Result = tuple[Sample, str]


class Judge:
    """A loaded model that answers samples greedily."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.model = model.to(device).eval()

    def count(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    @torch.inference_mode()
    def answer(self, prompts: list[str], tokens: int) -> list[str]:
        """The model's answers, each of at most `tokens` tokens."""
        encoded = self.tokenizer(
            prompts, add_special_tokens=False, padding=True, return_tensors="pt"
        ).to(self.model.device)
        inputs = {"input_ids": encoded.input_ids, "attention_mask": encoded.attention_mask}
        output = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        new = output[:, encoded.input_ids.shape[1] :]
        return self.tokenizer.batch_decode(new, skip_special_tokens=True)

    def answers(self, samples: list[Sample]) -> list[Result]:
        """Samples with the model's answers, in batches of prompts of like length."""
        sized = sorted(samples, key=lambda one: len(prompt_and_answer(one)[0]))
        found: list[Result] = []
        while sized:
            longest = self.count(prompt_and_answer(sized[-1])[0]) + 100
            size = max(1, _TOKENS_AT_ONCE // longest)
            chosen, sized = sized[-size:], sized[:-size]
            pairs = [prompt_and_answer(one) for one in chosen]
            most = max(self.count(right) for _, right in pairs) + 2
            found += zip(chosen, self.answer([prompt for prompt, _ in pairs], most), strict=True)
        return found


def samples(judge: Judge, count: int) -> list[Sample]:
    """`count` held-out samples of every judged kind."""
    rng = Random(_SEED)
    found = []
    for makers in JUDGED.values():
        found += [makers[index % len(makers)](rng, True) for index in range(count)]
    for distance in DISTANCES:
        found += [distant.judged(rng, distance, judge.count) for _ in range(count)]
    return found


def evaluate(folder: Path, device: str, count: int, show: int = 0) -> dict[str, float]:
    """Accuracy by kind; prints a table, and up to `show` wrong answers of each kind."""
    judge = Judge(folder, device, torch.bfloat16 if device == "cuda" else torch.float32)
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for sample, given in judge.answers(samples(judge, count)):
        prompt, expected = prompt_and_answer(sample)
        asked[sample.kind] += 1
        right[sample.kind] += given == expected
        if given != expected and wrong[sample.kind] < show:
            wrong[sample.kind] += 1
            print(f"[{sample.kind}] ...{prompt[-160:]!r}")
            print(f"  expected {expected!r}\n  answered {given!r}")
    accuracies = {kind: right[kind] / asked[kind] for kind in sorted(asked)}
    for kind, accuracy in accuracies.items():
        print(f"{kind:<16} {accuracy:7.1%}  of {asked[kind]}")
    return accuracies


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print of each kind")
    parser.add_argument("--json", type=Path, help="where to write the accuracies")
    chosen = parser.parse_args()
    accuracies = evaluate(chosen.folder, chosen.device, chosen.count, chosen.show)
    if chosen.json:
        chosen.json.write_text(json.dumps(accuracies, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
