"""Creates a runner from settings: device, group, model, weights, KV memory."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from penstock_kernels.kv_quantization import FP8
from penstock_kernels.op import reason

from penstock.cache import KvFormat, KvGeometry, entry_shape, kv_format, layer_shape
from penstock.config import Specification, read_config
from penstock.faults import BadSetting, TooLittleMemory, Unsupported
from penstock.layers import Build
from penstock.models import (
    DTYPES,
    Backend,
    LoadsItself,
    Model,
    fewer_layers,
    model_class,
    read_specification,
)
from penstock.parallel import Group
from penstock.quant import read_methods, with_stored_experts, with_stored_head
from penstock.weights import Checkpoint, load_weights
from penstock.worker.batch import step_sizes
from penstock.worker.protocol.settings import KvPool, Limits, Loaded, MemoryReport, Settings
from penstock.worker.run.graphs import Capture, DeviceCapture, TapeCapture
from penstock.worker.run.runner import RankModel, Runner
from penstock.worker.startup import memory
from penstock.worker.startup.compilers import Compilers, import_kernels
from penstock.worker.startup.kv_scales import scale_caches
from penstock.worker.startup.warmup import Warmup
from penstock.worker.state import State

BLOCK_TOKENS = 16
# Of a sequence, where nothing in a model limits its length: recurrent layers alone have no
# positions, and RoPE's base may grow. Block tables of all slots grow with it. The launcher has the
# same limit.
MOST_TOKENS = 1 << 20
Progress = Callable[[str, int, int], None]  # (phase, done, total)
log = logging.getLogger("penstock.worker")


def load(
    settings: Settings, progress: Progress, compilers: Compilers | None = None
) -> tuple[Runner, Loaded]:
    """Loads a model. Raises a Fault, whose text is for users.

    Call it on the thread that will launch steps, because device and thread settings are per thread.
    Closes `compilers` when everything is compiled.
    """
    with Warmup(settings.world_size, compilers) as warmup:
        return _load(settings, progress, warmup)


def _load(settings: Settings, progress: Progress, warmup: Warmup) -> tuple[Runner, Loaded]:
    raw = read_config(settings.model)
    cls = model_class(raw, settings.model_backend)
    if issubclass(cls, LoadsItself):
        config = cls.read_config(raw)
        _check_library(settings, config)
    else:
        config = _specification(cls, raw, settings.model_backend)
    dtype = DTYPES.get(settings.dtype)
    if dtype is None:
        raise BadSetting(f"dtype {settings.dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    capacity = _capacity(settings, config)
    config = config.within(capacity.sequence_tokens)
    device = _device(settings)
    if device.type == "cuda":
        import_kernels()
    # Before the ranks meet: none of them waits for one that has failed.
    _check_kv_dtype(settings, config, kv_format(settings.kv_dtype, dtype), device)
    methods = read_methods(raw, dtype, device, settings.quantize)
    _check_shares(settings, config)
    group = Group.join(settings.rank, settings.world_size, settings.rendezvous, device)
    try:
        positions = capacity.sequence_tokens
        build = Build(dtype, device, group, methods, positions, settings.expert_parallel)
        return _Loader(settings, config, capacity, build, progress).load(cls, warmup)
    except torch.OutOfMemoryError as error:
        group.leave()
        raise TooLittleMemory(
            f"the device's memory is too small to load this model: {reason(error)} "
            "Free it of other processes, share the model by --tp, or lower --max-step-tokens "
            "or --max-slots"
        ) from error
    except BaseException:
        group.leave()
        raise


def _specification(cls: type[Model], raw: Mapping[str, Any], backend: Backend) -> Specification:
    """Reads config.json by a native family; an error names the other implementation.

    That one is not tried without being asked: transformers ignores fields that it does not know.
    """
    try:
        return read_specification(cls, raw)
    except Unsupported as error:
        if backend is Backend.NATIVE:
            raise
        other = f"--model-backend {Backend.TRANSFORMERS.value}"
        raise Unsupported(f"{error}; {other} may run it, if transformers knows it") from error


class _PhaseTimer:
    """Measures the duration of each phase of a load, for the log."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.lines = [f"begun {_age():.2f} s after the worker's start"]

    def end(self, phase: str, size: int = 0) -> None:
        """Ends a phase that moved `size` bytes."""
        seconds, self.last = time.monotonic() - self.last, time.monotonic()
        rate = f" ({size / seconds / 1e9:.1f} GB/s)" if size else ""
        self.lines.append(f"{phase} {seconds:.2f} s{rate}")


def _age() -> float:
    """Returns the seconds since this process started; 0 if the system does not report it."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class _Loader:
    """The state that the phases of one load share."""

    def __init__(
        self,
        settings: Settings,
        config: Specification,
        capacity: memory.Capacity,
        build: Build,
        progress: Progress,
    ) -> None:
        self.settings = settings
        self.config = config
        self.capacity = capacity
        self.build = build
        self.progress = progress
        self.backend = Backend.NATIVE
        self.phases = _PhaseTimer()
        stored = kv_format(settings.kv_dtype, build.dtype)
        self.geometry = kv_geometry(config, build, settings.block_tokens or BLOCK_TOKENS, stored)

    def load(self, cls: type[Model], warmup: Warmup) -> tuple[Runner, Loaded]:
        """Loads the weights, allocates KV memory, warms up."""
        device, capacity = self.build.device, self.capacity
        model, loaded = self._model(cls)
        self.phases.end("weights", loaded)
        capacity = self.capacity = self._sized(capacity)
        self.progress("memory", 0, 1)
        budget = self._budget(model, warmup)
        self.phases.end(f"largest step, of {capacity.step_tokens} tokens,")
        group = self.build.group
        blocks = [group.minimum(n, device) for n in budget.blocks(capacity, self.geometry)]
        kv = self.geometry.allocate(blocks, device)
        rank_model = RankModel(model, group, kv, device, self.build.dtype)
        self.phases.end("KV memory")
        runner = Runner(rank_model, State(self._limits(blocks)), self._capture())
        warmup.run(runner)
        self.phases.end("warm-up")
        self.progress("memory", 1, 1)
        log.info("loaded: %s", ", ".join(self.phases.lines))
        return runner, self._loaded(budget, model.kept_bytes(), blocks)

    def _model(self, cls: type[Model]) -> tuple[Model, int]:
        with Checkpoint(self.settings.model) as checkpoint:
            dtypes = {name: checkpoint[name].dtype for name in checkpoint}
            methods = with_stored_head(self.build.methods, dtypes)
            if not issubclass(cls, LoadsItself):
                shapes = {name: checkpoint[name].shape for name in checkpoint}
                self.config = cls.as_stored(self.config, shapes)
                methods = with_stored_experts(methods, cls.expert_scales, shapes)
            self.build = replace(self.build, methods=methods)
            model = cls(self.config, self.build)
            self.phases.end("device")

            def report(done: int, total: int) -> None:
                self.progress("weights", done, total)

            if isinstance(model, LoadsItself):
                self.backend = Backend.TRANSFORMERS
                return model, model.load(self.settings.model, report)
            checkpoint.renew(model.older)
            if self.geometry.format.dtype in FP8:
                scale_caches(model, checkpoint)
            return model, load_weights(checkpoint, model, model.ignored, report)

    def _sized(self, capacity: memory.Capacity) -> memory.Capacity:
        """Returns the settings with the step and batch sizes that the worker chooses after loading
        the weights; equal on all ranks."""
        device, settings = self.build.device, self.settings
        if capacity.step_tokens and capacity.slots:
            return capacity
        step_tokens, slots = memory.CPU_STEP, memory.CPU_SLOTS
        if device.type == "cuda":
            room = memory.room_left((settings.kv_memory_bytes, settings.memory_fraction))
            room = self.build.group.minimum(room, device)
            step_tokens = memory.gpu_step(room, windows=any(self.config.windows))
            slots = memory.gpu_slots(room, self.geometry.state_bytes)
        return replace(
            capacity, step_tokens=capacity.step_tokens or step_tokens, slots=capacity.slots or slots
        )

    def _budget(self, model: Model, warmup: Warmup) -> memory.Budget:
        settings, capacity = self.settings, self.capacity
        kv_bytes, device = settings.kv_memory_bytes, self.build.device
        if device.type == "cpu":
            context = memory.prompts_context(capacity, self.geometry, device, 1)
            memory.exercise(model, capacity, context)
            return memory.cpu_budget(capacity, self.geometry, kv_bytes)
        context = memory.prompts_context(capacity, self.geometry, device, capacity.step_tokens)
        with warmup.compile_ahead(), fewer_layers(model):
            memory.exercise(model, capacity, context)
            warmup.begin(model, capacity, self.geometry, device)
        activations = memory.measure_activations(model, capacity, context)
        share = settings.memory_fraction
        return memory.cuda_budget(capacity, self.geometry, (kv_bytes, share), activations)

    def _capture(self) -> Capture | None:
        """Returns how this device captures small steps; None if it cannot."""
        build = self.build
        if build.device.type == "cuda":
            return DeviceCapture(build.device)
        # No tape holds where a group's ranks meet, or what PyTorch computes: attention over a cache
        # of another dtype, and recurrent layers.
        sole = build.group.size == 1 and self.geometry.format.dtype == build.dtype
        sole = sole and not self.config.has_states
        return TapeCapture() if build.methods.recordable and sole else None

    def _limits(self, blocks: list[int]) -> Limits:
        geometry = self.geometry
        return Limits(
            slots=self.capacity.slots,
            step_tokens=self.capacity.step_tokens,
            sequence_tokens=self.capacity.sequence_tokens,
            block_tokens=geometry.block_tokens,
            pools=tuple(
                KvPool(count, geometry.block_bytes(group), group.window, group.recurrent)
                for group, count in zip(geometry.groups, blocks, strict=True)
            ),
            vocab=self.config.vocab,
        )

    def _loaded(self, budget: memory.Budget, weights: int, blocks: list[int]) -> Loaded:
        device, limits = self.build.device, self._limits(blocks)
        beside_decodes = self.settings.max_step_tokens or memory.GPU_STEP
        report = MemoryReport(
            total=budget.total,
            weights=weights,
            activations=budget.activations,
            graphs=budget.graphs,
            slots=budget.slots,
            kv=sum(pool.blocks * pool.block_bytes for pool in limits.pools),
        )
        return Loaded(
            limits=limits,
            device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            memory=report,
            model_backend=self.backend,
            limitations=self.config.limitations,
            step_sizes=step_sizes(beside_decodes) if device.type == "cuda" else [],
        )


def kv_geometry(
    config: Specification, build: Build, block_tokens: int, stored: KvFormat
) -> KvGeometry:
    """Returns the KV geometry of this rank's layers, and of their compressed entries. Raises
    BadSetting for blocks that would cut what an indexer chooses."""
    for field, size in (attention.block_multiple for attention in config.softmax_layers):
        if block_tokens % size:
            raise BadSetting(
                f"block_tokens is {block_tokens}, not a multiple of {field}, {size}; set "
                "--block-tokens to one"
            )
    found = (layer.attention for layer in config.layers)
    layers = [layer_shape(each, build.group.size, build.dtype) for each in found]
    entries = [entry_shape(each, block_tokens) for each in config.compressed_layers]
    layers += entries
    return KvGeometry.of(layers, block_tokens, stored, config.kv_readers, bool(entries))


def full_sums() -> None:
    """Makes cuBLAS accumulate in float32; by default it may reduce splits in 16 bits."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def _capacity(settings: Settings, config: Specification) -> memory.Capacity:
    bounded = config.softmax_layers and not config.extends
    if bounded and settings.max_sequence_tokens > config.max_positions:
        raise BadSetting(
            f"max_sequence_tokens is {settings.max_sequence_tokens}, but the model was made for "
            f"{config.max_positions} ({config.length_limit}); lower --max-len"
        )
    if settings.max_sequence_tokens > (most := max(MOST_TOKENS, config.max_positions)):
        raise BadSetting(
            f"max_sequence_tokens is {settings.max_sequence_tokens}, more than {most}; lower "
            "--max-len"
        )
    if settings.kv_memory_bytes == 0 and not 0 < settings.memory_fraction <= 1:
        raise BadSetting(
            f"memory_fraction must be above 0 and at most 1, found {settings.memory_fraction}"
        )
    return memory.Capacity(
        step_tokens=settings.max_step_tokens,
        slots=settings.max_slots,
        sequence_tokens=settings.max_sequence_tokens or config.max_positions,
        vocab=config.vocab,
    )


def _check_kv_dtype(
    settings: Settings, config: Specification, stored: KvFormat, device: torch.device
) -> None:
    """Raises BadSetting for a KV dtype that the model's attention does not read, or that the
    device has no conversion for."""
    if settings.kv_dtype != "auto" and config.has_latents:
        raise BadSetting(
            f"kv_dtype {settings.kv_dtype} is not supported for multi-head latent attention and "
            "for attention to chosen blocks; use --kv-dtype auto"
        )
    if settings.kv_dtype != "auto" and not config.softmax_layers:
        raise BadSetting(
            f"kv_dtype {settings.kv_dtype} is not supported for a model without keys and values; "
            "use --kv-dtype auto"
        )
    if stored.dtype == torch.float8_e4m3fn and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < (8, 9):
            raise BadSetting(
                f"kv_dtype fp8_e4m3 needs a GPU of compute capability 8.9 or later, found "
                f"{major}.{minor}; use --kv-dtype fp8_e5m2 or int8"
            )


def _check_library(settings: Settings, config: Any) -> None:
    """Raises BadSetting if ranks cannot share a model that runs through transformers."""
    if settings.world_size > 1 and config.sharing.refusal:
        raise BadSetting(
            f"--tp is {settings.world_size}, but ranks cannot share this model: "
            f"{config.sharing.refusal}; leave --tp out"
        )
    log.warning(
        "transformers computes this model, over Penstock's paged attention; given up: %s",
        "; ".join(config.limitations),
    )


def _check_shares(settings: Settings, config: Specification) -> None:
    if settings.expert_parallel and not config.has_experts:
        raise BadSetting("expert_parallel is set, but this model has no experts; leave --ep out")
    group = Group(settings.rank, settings.world_size)
    for name, size in config.shared_sizes(settings.expert_parallel):
        group.share(size, name)
    for attention in config.softmax_layers:
        if attention.latent is None:
            group.kv_share(attention.kv_heads)


def _device(settings: Settings) -> torch.device:
    """The rank's device, made current. With one visible GPU it is that one, whatever the rank."""
    if settings.device == "cpu":
        if settings.threads:
            torch.set_num_threads(settings.threads)
        return torch.device("cpu")
    if settings.device != "cuda":
        raise BadSetting(f"device {settings.device!r} is unknown; choose cuda or cpu")
    count = torch.cuda.device_count()
    if count == 0:
        raise BadSetting("device is cuda, but torch finds no GPU; use --device cpu or check driver")
    if settings.rank >= count > 1:
        raise BadSetting(f"rank {settings.rank} needs a GPU of its own; only {count} are visible")
    device = torch.device("cuda", settings.rank if count > 1 else 0)
    torch.cuda.set_device(device)
    full_sums()
    return device
