"""Strict loading: every tensor has exactly one place, and every place gets its tensor."""

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

    `ignored` are patterns of checkpoint names that carry nothing. `progress` gets (bytes done,
    bytes in all). Raises BadModel naming tensors that are missing, left over, mis-shaped or stored
    in a dtype that their layer does not take.
    """
    pattern = re.compile("|".join(ignored) or r"(?!)")
    present = {name for name in checkpoint if not pattern.fullmatch(name)}
    targets = {_stored_name(name, parts[0], present): parts for name, parts in targets.items()}
    _check_names(present, set(targets))
    pairs = [(name, target) for name, parts in targets.items() for target in parts]
    for name, target in pairs:
        _check(name, checkpoint[name], target)
    total = sum(target.destination.nbytes for _, target in pairs)
    done = 0
    device = next((t.destination.device for _, t in pairs), torch.device("cpu"))
    mover = Mover(device)
    pool = ThreadPoolExecutor(READERS)
    jobs = []
    try:
        for name, target in pairs:
            if target.gathered:
                jobs.append(pool.submit(_gather, checkpoint[name], target))
            else:
                jobs += [pool.submit(mover, move) for move in moves(checkpoint[name], target)]
        for job in as_completed(jobs):
            done += job.result()
            progress(done, total)
    finally:
        # After an error nothing more is begun, and what was begun writes to memory until it ends.
        pool.shutdown(cancel_futures=True)
        mover.finish()
    return total


def _stored_name(name: str, target: Target, present: set[str]) -> str:
    """The tensor's name in this checkpoint."""
    module = name.rpartition(".")[0]
    names = [f"{module}.{suffix}" for suffix in target.suffixes] or [name]
    return next((one for one in names if one in present), names[0])


def _gather(stored: StoredTensor, target: Target) -> int:
    """Looks up the entries of a target whose form is not the file's. Returns the bytes written."""
    assert target.form is not None
    with torch.inference_mode():  # a setting of each thread
        entries = target.form.entries(stored.tensor(), target.shape, target.region)
        target.destination.copy_(entries)
    return int(target.destination.nbytes)


def _check(name: str, stored: StoredTensor, target: Target) -> None:
    """Floats are converted; all other numbers must be what the layer's weight format takes."""
    if not target.accepts(stored.shape):
        shapes = " or ".join(dict.fromkeys(str(list(shape)) for shape in target.shapes))
        raise BadModel(
            f"tensor {name} has shape {list(stored.shape)}, but config.json makes it "
            f"{shapes}: they belong to different models"
        )
    form = target.form
    wanted = (form and form.dtype) or target.destination.dtype
    if stored.dtype != wanted and not {stored.dtype, wanted} <= FLOATS:
        raise BadModel(
            f"{stored.path}: tensor {name} is {_short(stored.dtype)}, but its layer takes "
            f"{_short(wanted)}; take the checkpoint whose quantization_config describes its "
            "weights, or the unquantized model"
        )
    if form is not None:
        form.check(name, stored.tensor)


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
