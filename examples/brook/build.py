"""Build brook: tokenizer, training, model folder, evaluation, model card.

python -m examples.brook.build --out FOLDER
"""

import argparse
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from . import tokenizer as tokenizer_training
from .card import card
from .evaluate import SHIPPED, evaluate
from .export import export_tokenizer, export_weights
from .model import Shape
from .train import Plan, fresh, train


@dataclass(frozen=True)
class Job:
    """What to build, and from what."""

    # The model folder to write.
    out: Path
    # A tokenizer.json to use, so that token ids stay as they are; None trains a new one.
    tokenizer: Path | None
    # Where to train and evaluate: "cuda" or "cpu".
    device: str
    # Samples of each kind to evaluate.
    count: int


def build(job: Job, plan: Plan, shape: Shape) -> None:
    """Make the model folder."""
    path = job.out / "tokenizer.json"
    kept = job.tokenizer
    tokenizer = Tokenizer.from_file(str(kept)) if kept else tokenizer_training.train()
    export_tokenizer(tokenizer, shape, job.out)
    begin = time.monotonic()
    model = train(fresh(shape, plan.seed), plan, path, job.device)
    export_weights(model, job.out)
    training = {
        "minutes": (time.monotonic() - begin) / 60,
        "steps": plan.steps,
        "tokens": plan.steps * plan.rows * shape.context,
        "device": torch.cuda.get_device_name() if job.device == "cuda" else job.device,
        "python": platform.python_version(),
    }
    report = {
        "training": training,
        "count": job.count,
        "accuracies": evaluate(job.out, job.device, job.count, show=3),
    }
    text = json.dumps(report, indent=2) + "\n"
    (job.out / "evaluation.json").write_text(text, encoding="utf-8")
    (job.out / "README.md").write_text(card(job.out), encoding="utf-8")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--new-tokenizer", action="store_true", help="train one instead of using the shipped one"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=300, help="samples of each kind to evaluate")
    parser.add_argument("--steps", type=int, default=11_600)
    parser.add_argument("--rows", type=int, default=64, help="rows of 2,048 tokens in a batch")
    parser.add_argument("--processes", type=int, default=15, help="processes that make data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cooldown", type=float, default=0.45, help="share of steps to slow down")
    return parser.parse_args()


def main() -> None:
    """Build what the command line says."""
    chosen = options()
    plan = Plan(
        steps=chosen.steps,
        rows=chosen.rows,
        processes=chosen.processes,
        seed=chosen.seed,
        cooldown=chosen.cooldown,
    )
    tokenizer = None if chosen.new_tokenizer else SHIPPED / "tokenizer.json"
    build(Job(chosen.out, tokenizer, chosen.device, chosen.count), plan, Shape())


if __name__ == "__main__":
    main()
