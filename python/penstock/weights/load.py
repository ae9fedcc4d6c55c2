"""Strict loading: every tensor has exactly one place, and every place gets its tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from penstock.faults import BadModel
from penstock.weights.files import Checkpoint
from penstock.weights.target import Target
from penstock.weights.transfer import Mover, moves

READERS = 8
SHOWN = 5


def checkpoint_names(targets: Mapping[str, Target], names: Mapping[str, str]) -> dict[str, Target]:
    """Renames targets from the layers' paths to the checkpoint's names.

    `names` maps a checkpoint's module to a layer's path, with {} for a layer's number:
    "model.layers.{}.mlp.up_proj" -> "blocks.{}.mlp.gate_up.up".
    """
    modules = {path: module for module, path in names.items()}
    renamed = {}
    for path, target in targets.items():
        layer, _, suffix = path.rpartition(".")
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", layer + ".")
        module = modules[re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", layer)]
        renamed[f"{module.format(*numbers)}.{suffix}"] = target
    return renamed


def load_weights(
    checkpoint: Checkpoint,
    targets: Mapping[str, Target],
    ignored: Iterable[str],
    progress: Callable[[int, int], None],
) -> int:
    """Fills all targets from the checkpoint; returns the bytes written.

    `ignored` are patterns of checkpoint names that carry nothing. `progress` gets (bytes done,
    bytes in all). Raises BadModel naming tensors that are missing, left over or mis-shaped.
    """
    pattern = re.compile("|".join(ignored) or r"(?!)")
    present = {name for name in checkpoint if not pattern.fullmatch(name)}
    _check_names(present, set(targets))
    for name, target in targets.items():
        found = checkpoint[name].shape
        if found != target.shape:
            raise BadModel(
                f"tensor {name} has shape {list(found)}, but config.json "
                f"makes it {list(target.shape)}: they belong to different models"
            )
    total = sum(t.destination.nbytes for t in targets.values())
    done = 0
    device = next((t.destination.device for t in targets.values()), torch.device("cpu"))
    mover = Mover(device)
    work = [move for name, target in targets.items() for move in moves(checkpoint[name], target)]
    pool = ThreadPoolExecutor(READERS)
    try:
        for job in as_completed([pool.submit(mover, move) for move in work]):
            done += job.result()
            progress(done, total)
    finally:
        # After an error nothing more is begun, and what was begun writes to memory until it ends.
        pool.shutdown(cancel_futures=True)
        mover.finish()
    return total


def _check_names(present: set[str], wanted: set[str]) -> None:
    for what, names in (("lacks", wanted - present), ("has unknown", present - wanted)):
        if names:
            shown = ", ".join(sorted(names)[:SHOWN])
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise BadModel(
                f"the checkpoint {what} tensors: {shown}{more}; is it complete and of the "
                "architecture that its config.json names?"
            )
