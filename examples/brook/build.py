"""Build brook from nothing: tokenizer, training, model folder, evaluation.

python -m examples.brook.build --out FOLDER
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from . import tokenizer as tokenizer_training
from .card import card
from .evaluate import evaluate
from .export import export_tokenizer, export_weights, import_weights
from .model import Brook, Shape
from .train import Plan, fresh, train


def build(folder: Path, model: Brook, plan: Plan, device: str, count: int) -> None:
    """Make the model folder; a tokenizer.json that is already there is kept."""
    shape = model.shape
    path = folder / "tokenizer.json"
    kept = Tokenizer.from_file(str(path)) if path.exists() else tokenizer_training.train()
    export_tokenizer(kept, shape, folder)
    start = time.monotonic()
    model = train(model, plan, path, device)
    minutes = (time.monotonic() - start) / 60
    export_weights(model, folder)
    print(f"trained for {minutes:.1f} minutes")
    report = {
        "minutes": minutes,
        "steps": plan.steps,
        "tokens": plan.steps * plan.rows * shape.context,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "python": platform.python_version(),
        "count": count,
        "accuracies": evaluate(folder, device, count, show=3),
    }
    text = json.dumps(report, indent=2) + "\n"
    (folder / "evaluation.json").write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(card(folder), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10_500)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--count", type=int, default=300, help="samples of each kind to evaluate")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=Path, help="a model folder to go on from")
    parser.add_argument("--peak", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument(
        "--cooldown", type=float, default=0.45, help="share of steps to slow down in"
    )
    for name, size in (("hidden", 512), ("intermediate", 1024), ("layers", 4), ("head-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=size)
    chosen = parser.parse_args()
    shape = Shape(hidden=chosen.hidden, intermediate=chosen.intermediate, layers=chosen.layers,
                  head_dim=chosen.head_dim)  # fmt: skip
    plan = Plan(
        chosen.steps,
        chosen.rows,
        chosen.processes,
        chosen.seed,
        cooldown=chosen.cooldown,
        peak=chosen.peak,
    )
    model = import_weights(shape, chosen.start) if chosen.start else fresh(shape, chosen.seed)
    build(chosen.out, model, plan, chosen.device, chosen.count)


if __name__ == "__main__":
    main()
