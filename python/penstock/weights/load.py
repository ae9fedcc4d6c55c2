"""Strict loading: every tensor has a target, and every target gets its tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Protocol

import torch

from penstock.faults import BadModel
from penstock.weights.files import Checkpoint, StoredTensor
from penstock.weights.target import Target
from penstock.weights.transfer import Mover, moves

READERS = 8
BATCH_BYTES = 1 << 20  # of jobs that one thread does in turn
SCALES = re.compile(r"(^|[._])(scales?|SCB|absmax)(_inv|_2)?$")  # of quantized weights
SHOWN = 5
# float8_e8m0fnu: scales that are powers of two.
FLOATS = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e8m0fnu,
}
Targets = Mapping[str, Sequence[Target]]
Job = Callable[[], int]  # returns the bytes written


@dataclass(frozen=True)
class Stage:
    """A part of a model that is loaded before the memory of the next part is allocated."""

    begin: Callable[[], Targets]
    """Allocates what is not allocated yet, and returns the targets of each tensor."""
    finish: Callable[[], None]
    """Called when they are filled."""


class Loadable(Protocol):
    """A model that is loaded as a whole, or stage by stage."""

    def checkpoint_targets(self) -> Targets:
        """Returns the targets of each tensor; those of later stages may be on the meta device."""

    def stages(self) -> Sequence[Stage]:
        """Returns the stages, which together have these targets."""

    def finish(self) -> None:
        """Called when all targets are filled, if none was on the meta device."""


def load_weights(
    checkpoint: Checkpoint,
    model: Loadable,
    ignored: Iterable[str],
    progress: Callable[[int, int], None],
) -> int:
    """Fills all targets from the checkpoint; returns the bytes written.

    `ignored` are patterns of checkpoint names that carry nothing. `progress` gets (bytes done,
    bytes in all). Raises BadModel, before it writes anything, naming tensors that are missing, left
    over, mis-shaped or stored in a dtype that their layer does not take.
    """
    targets = model.checkpoint_targets()
    names = _checked_names(checkpoint, targets, ignored)
    mover = Mover(_device(targets))
    total, done = sum(t.destination.nbytes for name in names for t in targets[name]), 0
    late = any(target.destination.is_meta for target in chain(*targets.values()))
    # Layers that repack their weights free the loaded ones, if nothing else holds them.
    held = [targets]
    del targets
    pool = ThreadPoolExecutor(READERS)
    try:
        for stage in model.stages() if late else [Stage(held.pop, model.finish)]:
            for moved in _fill(stage.begin(), checkpoint, names, mover, pool):
                done += moved
                progress(done, total)
            stage.finish()
    finally:
        # After an error nothing more is begun, and what was begun writes to memory until it ends.
        pool.shutdown(cancel_futures=True)
        mover.finish()
    return total


def _device(targets: Targets) -> torch.device:
    """Returns the device of targets that are not on the meta device; a CPU if there are none."""
    devices = (target.destination.device for target in chain(*targets.values()))
    return next((device for device in devices if device.type != "meta"), torch.device("cpu"))


def _fill(
    targets: Targets,
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    mover: Mover,
    pool: ThreadPoolExecutor,
) -> Iterator[int]:
    """Fills the targets of a stage; yields the bytes of each part that is written."""
    mover.finish()  # the memory may be that of the last stage, which the device still reads
    pairs = ((names[n], target) for n, parts in targets.items() if n in names for target in parts)
    batches = [pool.submit(_run, batch) for batch in _batches(checkpoint, pairs, mover)]
    for batch in as_completed(batches):
        yield batch.result()
    mover.finish()


def _run(jobs: Sequence[Job]) -> int:
    return sum(job() for job in jobs)


def _batches(
    checkpoint: Checkpoint, pairs: Iterable[tuple[str, Target]], mover: Mover
) -> Iterator[list[Job]]:
    """All jobs, those of small tensors together: to hand one over takes as long as to read some
    100 KB."""
    batch: list[Job] = []
    size = 0
    for name, target in pairs:
        for job in _jobs(checkpoint[name], target, mover):
            batch.append(job)
            size += target.destination.nbytes
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    yield batch


def _checked_names(
    checkpoint: Checkpoint, targets: Targets, ignored: Iterable[str]
) -> dict[str, str]:
    """Returns the name of each target's tensor in this checkpoint, if it has one. Raises as
    `load_weights`."""
    pattern = re.compile("|".join(ignored) or r"(?!)")
    present = {name for name in checkpoint if not pattern.fullmatch(name)}
    stored = {name: _stored_name(name, parts[0], present) for name, parts in targets.items()}
    for name in [name for name, parts in targets.items() if parts[0].optional]:
        if stored[name] not in present or 0 in checkpoint[stored[name]].shape:
            present.discard(stored.pop(name))
    wanted = set(stored.values())
    left_over = present - wanted
    # Some GPTQ checkpoints have a bias of zeros for every layer.
    present -= {n for n in left_over if n.endswith(".bias") and not checkpoint[n].tensor().any()}
    _check_quantized(present - wanted, wanted - present)
    _check_names(present, wanted)
    pairs = [(found, target) for name, found in stored.items() for target in targets[name]]
    for name, target in pairs:
        _check(name, checkpoint[name], target)
    _check_shared(checkpoint, pairs)
    return stored


def _check_shared(checkpoint: Checkpoint, pairs: Sequence[tuple[str, Target]]) -> None:
    """Tensors of fused parts that fill one tensor of their layer must be equal."""
    first: dict[int, str] = {}
    for name, target in pairs:
        other = first.setdefault(id(target.destination), name)
        if other != name and not torch.equal(checkpoint[other].tensor(), checkpoint[name].tensor()):
            raise BadModel(
                f"tensors {other} and {name} differ; their layers are multiplied as one matrix, so "
                "they must be equal"
            )


def _stored_name(name: str, target: Target, present: set[str]) -> str:
    """The tensor's name in this checkpoint."""
    module = name.rpartition(".")[0]
    names = [f"{module}.{suffix}" for suffix in target.suffixes] or [name]
    return next((one for one in names if one in present), names[0])


def _jobs(stored: StoredTensor, target: Target, mover: Mover) -> Iterator[Job]:
    """What fills a target; each returns the bytes written."""
    stored = _read_as(stored, target)
    if target.gathered:
        yield partial(_gather, stored, target)
    else:
        yield from (partial(mover, move) for move in moves(stored, target))


def _gather(stored: StoredTensor, target: Target) -> int:
    """Looks up the entries of a target whose form is not the file's. Returns the bytes written."""
    with torch.inference_mode():  # a setting of each thread
        target.destination.copy_(target.entries(stored.tensor()))
    return int(target.destination.nbytes)


def _check(name: str, stored: StoredTensor, target: Target) -> None:
    """Floats and ids are converted; all other numbers must be what the layer's weight format
    takes."""
    if not target.accepts(stored.shape):
        shapes = " or ".join(dict.fromkeys(str(list(shape)) for shape in target.shapes))
        raise BadModel(
            f"{stored.path}: tensor {name} has shape {list(stored.shape)}, but config.json makes "
            f"it {shapes} (with its quantization_config, if it has one)"
        )
    form, stored, wanted = target.form, _read_as(stored, target), target.dtype
    widened = (stored.dtype, wanted) == (torch.int32, torch.int64)  # as tables of ids are
    if stored.dtype != wanted and not ({stored.dtype, wanted} <= FLOATS or widened):
        raise BadModel(
            f"{stored.path}: tensor {name} is {_short(stored.dtype)}, but its layer takes "
            f"{_short(wanted)}; take the checkpoint whose quantization_config describes its "
            "weights, or the unquantized model"
        )
    if form is not None:
        form.check(name, stored.tensor)
    scales = stored.dtype.is_floating_point and SCALES.search(name)
    if scales and not stored.tensor().float().isfinite().all():
        raise BadModel(
            f"{stored.path}: tensor {name} has scales that are no finite numbers: the file is "
            "damaged, or was made from a damaged model"
        )


def _read_as(stored: StoredTensor, target: Target) -> StoredTensor:
    """A tensor with the dtype that the target takes its bytes for: some files name those of powers
    of two float8_e8m0fnu, others uint8."""
    if stored.dtype == torch.float8_e8m0fnu and target.dtype == torch.uint8:
        return replace(stored, dtype=torch.uint8)
    return stored


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_quantized(unknown: set[str], lacking: set[str]) -> None:
    """Matrices that settings describe otherwise than they are: floats of a quantized checkpoint,
    and codes where there are no settings."""
    modules = {name.rpartition(".")[0] for name in lacking}
    floats = modules & {name.removesuffix(".weight") for name in unknown}
    if floats:
        raise BadModel(
            f"the checkpoint does not quantize {_shown(floats)}, but its quantization_config does "
            "not say so: name them in its list of modules that are not quantized "
            "(modules_to_not_convert, ignored_layers or ignore)"
        )
    codes = {name.removesuffix(".weight") for name in lacking if name.endswith(".weight")}
    codes &= {name.removesuffix(".qweight") for name in unknown if name.endswith(".qweight")}
    if codes:
        raise BadModel(
            f"the checkpoint has qweight in place of weight of {_shown(codes)}: it looks like a "
            "GPTQ or AWQ checkpoint without its configuration; copy quantization_config of "
            "config.json, quantize_config.json or quant_config.json from where it was made"
        )


def _shown(modules: set[str]) -> str:
    """The first few."""
    return ", ".join(sorted(modules)[:SHOWN]) + (" and more" if len(modules) > SHOWN else "")


def _check_names(present: set[str], wanted: set[str]) -> None:
    for what, names in (("lacks", wanted - present), ("has unknown", present - wanted)):
        if names:
            shown = ", ".join(sorted(names)[:SHOWN])
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise BadModel(
                f"the checkpoint {what} tensors: {shown}{more}; is it complete and of the "
                "architecture that its config.json names?"
            )
