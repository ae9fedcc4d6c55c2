"""Strict loading: every tensor has a target, and every target gets its tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from penstock.faults import BadModel
from penstock.weights.files import Checkpoint, StoredTensor
from penstock.weights.target import Target
from penstock.weights.transfer import Mover, moves

READERS = 8
SHOWN = 5
FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def load_weights(
    checkpoint: Checkpoint,
    targets: Mapping[str, Sequence[Target]],
    ignored: Iterable[str],
    progress: Callable[[int, int], None],
) -> int:
    """Fills all targets from the checkpoint; returns the bytes written.

    `ignored` are patterns of checkpoint tensors that are not loaded. `progress` gets (bytes done,
    bytes in all). Raises BadModel naming tensors that are missing, unexpected, of a wrong shape, or
    stored in a dtype that their layer does not accept.
    """
    pattern = re.compile("|".join(ignored) or r"(?!)")
    present = {name for name in checkpoint if not pattern.fullmatch(name)}
    _check_names(present, set(targets))
    pairs = [(name, target) for name, parts in targets.items() for target in parts]
    for name, target in pairs:
        _check(name, checkpoint[name], target)
    total = sum(target.destination.nbytes for _, target in pairs)
    done = 0
    device = next((t.destination.device for _, t in pairs), torch.device("cpu"))
    mover = Mover(device)
    work = [move for name, target in pairs for move in moves(checkpoint[name], target)]
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


def _check(name: str, stored: StoredTensor, target: Target) -> None:
    """Raises BadModel for a wrong shape or dtype. Floats are converted, other dtypes must be
    equal."""
    if stored.shape != target.shape:
        raise BadModel(
            f"tensor {name} has shape {list(stored.shape)}, but config.json makes it "
            f"{list(target.shape)}: they belong to different models"
        )
    wanted = target.destination.dtype
    if stored.dtype != wanted and not {stored.dtype, wanted} <= FLOATS:
        raise BadModel(
            f"{stored.path}: tensor {name} is {_short(stored.dtype)}, but its layer takes "
            f"{_short(wanted)}; take the checkpoint whose quantization_config describes its "
            "weights, or the unquantized model"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_names(present: set[str], wanted: set[str]) -> None:
    for what, names in (("lacks", wanted - present), ("has unknown", present - wanted)):
        if names:
            shown = ", ".join(sorted(names)[:SHOWN])
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise BadModel(
                f"the checkpoint {what} tensors: {shown}{more}; is it complete and of the "
                "architecture that its config.json names?"
            )
