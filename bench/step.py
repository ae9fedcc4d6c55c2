"""Times a worker's steps on a GPU without router or transport, beside what the memory allows.

    python bench/run.py step 1b 8b [--eager] [--kernels] [--steps N] [--cases
        CASE ...]

Random weights of the shape, bfloat16. Per case: device time of a step (events), wall time of a step
when two are in flight, host time (folding and packing, then launching), and the floor: every byte
of weights and of visible keys and values read once, and of states read and written, at the measured
copy bandwidth (of experts, the share that random choices of as many tokens reach). Some hundred
steps of many sequences take seconds, in which power limits a GPU: with 240 a step of 256 takes
longer.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from harness.checkpoint import stored
from harness.graphs import copy_bandwidth
from harness.shapes import SHAPES
from penstock.cache import KvGeometry, LayerCache, StateCache, kv_format
from penstock.config import MoeSpec, Specification
from penstock.layers import Build
from penstock.models import Model, family
from penstock.parallel import Group
from penstock.quant import read_methods
from penstock.weights import Target
from penstock.worker.protocol.sampling_params import SamplingParams
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.protocol.step import NewSequence, Step
from penstock.worker.run.graphs import DeviceCapture
from penstock.worker.run.runner import Pending, RankModel, Runner
from penstock.worker.startup.loader import full_sums, kv_geometry
from penstock.worker.state import State

CUDA = torch.device("cuda")
BLOCK_TOKENS = 16
SEQUENCE_TOKENS = 8192
NONE = np.zeros(0, np.int32)
GREEDY = SamplingParams()
WARM = 8  # steps of a case that are not timed
SLOTS = 257
ACTIVATIONS = 6 << 30  # bytes that steps need beside weights and KV
ROOM = 128  # blocks of a sequence


@dataclass(frozen=True)
class Case:
    """`decodes` sequences of `context` tokens take one more, beside a prompt of `prompt` tokens."""

    decodes: int
    context: int
    prompt: int = 0

    def __str__(self) -> str:
        parts = [f"{self.decodes}x{self.context}"] if self.decodes else []
        return "+".join(parts + ([f"prompt{self.prompt}"] if self.prompt else []))

    def blocks(self, steps: int) -> int:
        """Tokens in each decoding sequence after `steps` timed steps."""
        return -(-(self.context + WARM + steps + 8) // BLOCK_TOKENS)

    @classmethod
    def read(cls, text: str) -> Case:
        """What `str` makes of a case; ValueError for anything else."""
        found = re.fullmatch(r"(?:(\d+)x(\d+))?(?:(?:(?<=\d)\+|^)prompt(\d+))?", text)
        if not text or found is None:
            raise ValueError(f"{text!r} is no case")
        return cls(*(int(number or 0) for number in found.groups()))


CASES = [
    Case(1, 256),
    Case(8, 512),
    Case(32, 640),
    Case(64, 640),
    Case(128, 1100),
    Case(212, 1100),  # padded to 224
    Case(256, 1100),
    Case(0, 0, 32),
    Case(0, 0, 128),
    Case(0, 0, 512),
    Case(0, 0, 1920),
    Case(0, 0, 2048),
    Case(0, 0, 2100),
    Case(0, 0, 2304),
    Case(0, 0, 8192),
    *(Case(32, 640, prompt) for prompt in (64, 128, 224, 256, 512)),
    Case(212, 1100, 812),
    Case(256, 1100, 768),
    Case(256, 1100, 1792),
]


@dataclass(frozen=True)
class Weights:
    """What steps read of a model."""

    bytes: int
    """All, without the rows of an embedding."""
    experts: float
    """The share of it that is routed experts."""
    chosen: float
    """The share of a layer's experts that one token chooses."""

    def of(self, tokens: int) -> float:
        """The bytes that a step of `tokens` tokens reads, on average."""
        unread = (1 - self.chosen) ** tokens
        return self.bytes * (1 - self.experts * unread)


def chosen(config: Specification) -> float:
    """The share of a layer's experts that one token chooses; 1 without experts."""
    sparse = [layer.mlp for layer in config.layers if isinstance(layer.mlp, MoeSpec)]
    return sparse[0].routing.top_k / sparse[0].experts if sparse else 1.0


def build(shape: str, quantize: str = "", kv_dtype: str = "auto") -> tuple[Runner, Weights]:
    """A runner with random weights, for SLOTS sequences of 2,048 tokens, and the weights that a
    step reads. Sequences share blocks where memory is too small for all."""
    cls = family(SHAPES[shape])
    config = cls.read_config(SHAPES[shape])
    methods = read_methods(SHAPES[shape], torch.bfloat16, CUDA, quantize)
    make = Build(torch.bfloat16, CUDA, Group(), methods, SEQUENCE_TOKENS)
    model = cls(config, make)
    embedding, experts, whole = fill_weights(model)
    if config.tied:
        embedding = 0  # the head reads it
    geometry = kv_geometry(config, make, BLOCK_TOKENS, kv_format(kv_dtype, make.dtype))
    pools = divide(geometry, torch.cuda.mem_get_info()[0] - ACTIVATIONS)
    limits = Limits(SLOTS, 8192, SEQUENCE_TOKENS, BLOCK_TOKENS, pools, config.vocab)
    kv = geometry.allocate([pool.blocks for pool in pools], CUDA)
    for cache in kv.caches:
        if isinstance(cache, LayerCache):
            fill_cache(cache)
    rank_model = RankModel(model, Group(), kv, CUDA, make.dtype)
    read = model.kept_bytes() - embedding
    weights = Weights(read, experts / (whole - embedding), chosen(config))
    return Runner(rank_model, State(limits), DeviceCapture(CUDA)), weights


def fill_weights(model: Model) -> tuple[int, int, int]:
    """Draws random weights; the bytes of embeddings, of routed experts and of all, as stored."""
    sizes = Counter[str]()
    for stage in model.stages():
        sizes += filled(stage.begin())
        stage.finish()  # layers free what they repack, since nothing else holds it
    return sizes["embedding"], sizes["experts"], sizes.total()


def filled(stage: Mapping[str, Iterable[Target]]) -> Counter[str]:
    """Draws the weights of a stage; their bytes by kind."""
    sizes = Counter[str]()
    for name, targets in stage.items():
        for target in targets:
            draw(name, target)
            sizes[kind_of(name)] += target.destination.nbytes
    return sizes


def kind_of(name: str) -> str:
    """What a tensor belongs to."""
    if ".experts." in name:
        return "experts"
    return "embedding" if "embed_tokens" in name else "others"


def draw(name: str, target: Target) -> None:
    """Fills a target with random weights."""
    shape = tuple(target.destination.shape)
    drawn = replace(stored(name, target), shape=shape).draw(CUDA)
    target.destination.copy_(drawn.view(shape))


def divide(geometry: KvGeometry, room: int) -> tuple[KvPool, ...]:
    """Pools in `room` bytes: a state for each slot, and equally many blocks in all other groups."""
    of_tokens = sum(geometry.block_bytes(group) for group in geometry.groups if not group.recurrent)
    blocks = min(SLOTS * ROOM, (room - SLOTS * geometry.state_bytes) // max(of_tokens, 1))
    return tuple(
        KvPool(SLOTS if group.recurrent else blocks, window=group.window, recurrent=group.recurrent)
        for group in geometry.groups
    )


def fill_cache(cache: LayerCache) -> None:
    """Random keys and values: zeros would take less power."""
    if cache.params is not None:
        cache.data.random_(256)
        cache.params.uniform_(0.001, 0.02)  # scales are positive
    elif cache.data.itemsize == 1:
        cache.data.view(torch.uint8).random_(64)  # 0 to 2 in float8
    else:
        cache.data.normal_()


class Drive:
    """Plays the router: fills slots, then runs them."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.epoch = runner.state.epoch
        self.number = 0

    def restart(self) -> None:
        """Empties all slots."""
        self.epoch += 1
        self.number = 0

    def step(self, new: list[NewSequence], slots: list[int], counts: list[int]) -> Pending:
        """Launches one step."""
        step = Step(
            self.epoch,
            self.number,
            finished=NONE,
            new=new,
            forks=[],
            copies=[],
            growth=[],
            run_slots=np.array(slots, np.int32),
            run_tokens=np.array(counts, np.int32),
            steered_slots=NONE,
            steered_tokens=NONE,
        )
        self.number += 1
        return self.runner.launch(step)


def sequence(
    slot: int, tokens: int, computed: int, blocks: int, pools: tuple[KvPool, ...]
) -> NewSequence:
    """A sequence with random tokens and blocks of its own, if ROOM and the pools are enough."""
    ids = np.random.default_rng(slot).integers(0, 32000, tokens).astype(np.int32)
    own = np.arange(slot * ROOM, slot * ROOM + blocks, dtype=np.int32)
    state = np.array([slot], np.int32)
    tables = {
        group: state if pool.recurrent else own % pool.blocks for group, pool in enumerate(pools)
    }
    return NewSequence(slot, ids, 0, computed, tables, GREEDY)


@dataclass
class Times:
    """Seconds of each step."""

    device: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)  # folding and packing included
    launch: list[float] = field(default_factory=list)
    wall: float = 0.0  # of one, on average


def run(drive: Drive, case: Case, steps: int) -> Times:
    """Steps of one case, two in flight; the first WARM are not timed."""
    slots, counts = list(range(case.decodes)), [1] * case.decodes
    pools = drive.runner.state.limits.pools
    new = [sequence(s, case.context, case.context - 1, case.blocks(steps), pools) for s in slots]
    if case.prompt:
        slots, counts = [*slots, case.decodes], [*counts, case.prompt]
    times, flying = Times(), deque[Pending]()
    drive.restart()
    for number in range(WARM + steps):
        if case.prompt:
            new += [sequence(slots[-1], case.prompt, 0, -(-case.prompt // BLOCK_TOKENS), pools)]
        if number == WARM:
            flying.popleft().wait()
            times = Times(wall=time.perf_counter())
        began = time.perf_counter()
        flying.append(drive.step(new, slots, counts))
        times.launch.append(time.perf_counter() - began)
        times.host.append(flying[-1].host_us / 1e6)
        new = []
        if len(flying) == 2:
            times.device.append(finish(flying.popleft(), len(slots)))
    finish(flying.popleft(), len(slots))
    times.wall = (time.perf_counter() - times.wall) / steps
    return times


def finish(pending: Pending, tokens: int) -> float:
    """Waits for a step; its seconds on the device."""
    outcome = pending.wait()
    if len(outcome.token_ids) != tokens:
        raise RuntimeError(f"{len(outcome.token_ids)} tokens came where {tokens} were due")
    return outcome.device_us / 1e6


def line(drive: Drive, case: Case, steps: int, floor: float) -> str:
    """One line of the table; times in ms."""
    times = run(drive, case, steps)
    middle = [statistics.median(v) for v in (times.device, times.host, times.launch)]
    columns = [middle[0], times.wall, middle[1], middle[2], *([floor] if case.decodes else [])]
    return f"{case!s:16}" + "".join(f"{1e3 * value:10.3f}" for value in columns)


def table(shape: str, options: argparse.Namespace, bandwidth: float) -> None:
    """All cases of one shape."""
    runner, weights = build(shape, options.quantize, options.kv_dtype)
    if options.eager:
        runner.graphs = None
    drive = Drive(runner)
    print(
        f"{shape:16}" + "".join(f"{n:>10}" for n in ("device", "wall", "host", "launch", "floor"))
    )
    for case in options.cases:
        bytes_moved = weights.of(case.decodes) + case.decodes * visible(runner, case.context)
        print(line(drive, case, options.steps, bytes_moved / bandwidth), flush=True)
    for case in options.cases if options.kernels else []:
        print(kernels(drive, case, options.steps))


def visible(runner: Runner, context: int) -> int:
    """Bytes that the layers read of one sequence of `context` tokens, and write of its states."""
    kv, pools = runner.rank_model.kv, runner.state.limits.pools
    moved = 0
    for cache, group in zip(kv.caches, kv.group_of, strict=True):
        if isinstance(cache, StateCache):
            moved += 2 * sum(tensor[0].nbytes for tensor in cache.tensors)
        else:
            tokens = min(context, pools[group].window or context)
            moved += tokens * sum(tensor[0, :, :, 0].nbytes for tensor in cache.tensors)
    return moved


def kernels(drive: Drive, case: Case, steps: int) -> str:
    """Device time of each kernel, per step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run(drive, case, steps)
    steps += WARM
    found = sorted(profile.key_averages(), key=lambda k: -k.self_device_time_total)
    rows = [
        f"{k.self_device_time_total / steps:10.1f} us {k.count / steps:6.1f} x {k.key[:90]}"
        for k in found[:24]
    ]
    return "\n".join([f"kernels of one step of {case}:", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a worker's steps on a GPU.")
    parser.add_argument("shapes", nargs="+", choices=list(SHAPES))
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--quantize", default="", help="as penstock serve")
    parser.add_argument("--kv-dtype", default="auto", help="as penstock serve")
    parser.add_argument("--kernels", action="store_true", help="also the kernels of each case")
    parser.add_argument(
        "--cases", nargs="+", type=Case.read, default=CASES, metavar="CASE",
        help=f"any like these, which are all there are without it: {', '.join(map(str, CASES))}",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=40, help="that are timed, of each case")
    options = parser.parse_args()
    for case in options.cases:
        if case.decodes and case.blocks(options.steps) > ROOM:
            parser.error(f"{case} and {options.steps} steps exceed what there is room for")
    full_sums()
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s; times in ms")
    with torch.inference_mode():
        for shape in options.shapes:
            table(shape, options, bandwidth)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
