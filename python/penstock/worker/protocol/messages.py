"""Converts protocol messages to plain values and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.faults import BadSetting, BadStep, Fault
from penstock.grammar import (
    EndConditions,
    GrammarKind,
    GrammarRejected,
    GrammarSpec,
    Matcher,
    Reasoning,
)
from penstock.models import Backend
from penstock.rpc import shard_pb2 as pb
from penstock.worker.protocol.sampling_params import SamplingParams, Watermark
from penstock.worker.protocol.settings import Loaded, Settings
from penstock.worker.protocol.step import (
    Copies,
    FaultKind,
    Fork,
    Growth,
    NewSequence,
    Outcome,
    SlotError,
    Step,
)

if TYPE_CHECKING:
    from penstock.grammar.cache import GrammarCache

MOST_TOP_K = (1 << 31) - 1  # of the device's int32; above any vocabulary, where it means "off"


def to_settings(request: pb.LoadRequest) -> Settings:
    """Converts the fields of Load."""
    return Settings(
        model=Path(request.model_path),
        device=request.device,
        dtype=request.dtype,
        rank=request.rank,
        world_size=max(request.world_size, 1),
        rendezvous=request.rendezvous,
        max_sequence_tokens=request.max_sequence_tokens,
        max_slots=request.max_slots,
        max_step_tokens=request.max_step_tokens,
        kv_memory_bytes=request.kv_memory_bytes,
        memory_fraction=request.memory_fraction,
        block_tokens=request.block_tokens,
        threads=request.threads,
        kv_dtype=request.kv_dtype or "auto",
        quantize=request.quantize,
        expert_parallel=request.expert_parallel,
        model_backend=_backend(request.model_backend),
    )


def _backend(name: str) -> Backend:
    """Raises BadSetting for an unknown name."""
    try:
        return Backend(name or Backend.AUTO)
    except ValueError:
        known = ", ".join(backend.value for backend in Backend)
        raise BadSetting(f"model_backend {name!r} is unknown; choose one of {known}") from None


def from_loaded(loaded: Loaded) -> pb.Loaded:
    """Converts limits and memory of a loaded worker to a message."""
    limits, memory = loaded.limits, loaded.memory
    groups = [
        pb.KvGroup(
            block_tokens=limits.block_tokens,
            blocks=pool.blocks,
            block_bytes=pool.block_bytes,
            window=pool.window,
            recurrent=pool.recurrent,
        )
        for pool in limits.pools
    ]
    return pb.Loaded(
        kv_groups=groups,
        max_slots=limits.slots,
        max_step_tokens=limits.step_tokens,
        max_sequence_tokens=limits.sequence_tokens,
        max_tokens_per_run=1,
        vocab_size=limits.vocab,
        device_name=loaded.device_name,
        model_backend=loaded.model_backend.value,
        limitations=loaded.limitations,
        memory=pb.MemoryReport(
            total=memory.total,
            weights=memory.weights,
            activations=memory.activations,
            graphs=memory.graphs,
            slots=memory.slots,
            kv=memory.kv,
        ),
        step_sizes=loaded.step_sizes,
    )


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed


def _ints(values: Any) -> Any:
    return np.array(values, np.int32)


def _tables(tables: Sequence[pb.BlockTable]) -> dict[int, Any]:
    """Returns blocks by KV group. Ids behind a window may be any 32-bit number."""
    found = {table.group: np.array(table.blocks, np.uint32).view(np.int32) for table in tables}
    if len(found) != len(tables):
        raise BadStep("a sequence has two tables of one KV group")
    return found


def to_sampling(sampling: pb.Sampling) -> SamplingParams:
    """Converts sampling parameters."""
    penalties, bias, mark = pb.Penalties(repetition=1), None, None
    if sampling.HasField("penalties"):
        penalties = sampling.penalties
    if sampling.HasField("logit_bias"):
        given = sampling.logit_bias
        bias = _ints(given.token_ids), np.array(given.values, np.float32)
    if sampling.HasField("watermark"):
        chosen = sampling.watermark
        mark = Watermark(chosen.gamma, chosen.delta, _signed(chosen.key))
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=min(sampling.top_k, MOST_TOP_K),
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p or 1.0,
        repetition=penalties.repetition,
        frequency=penalties.frequency,
        presence=penalties.presence,
        seed=_signed(sampling.seed),
        min_tokens=sampling.min_tokens,
        stop_token_ids=np.array(sampling.stop_token_ids, np.int64),
        bias=bias,
        allowed=_ints(sampling.allowed.token_ids) if sampling.HasField("allowed") else None,
        banned=_ints(sampling.banned_token_ids) if sampling.banned_token_ids else None,
        bad_words=tuple(_ints(word.token_ids) for word in sampling.bad_words),
        watermark=mark,
        top_logprobs=sampling.top_logprobs,
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
        logprob_token_ids=_ints(sampling.logprob_token_ids) if sampling.logprob_token_ids else None,
    )


def to_grammar_spec(grammar: pb.Grammar) -> GrammarSpec:
    """Converts a grammar spec. Raises GrammarRejected for a kind that this version lacks."""
    kinds = {
        pb.Grammar.KIND_JSON_SCHEMA: GrammarKind.JSON_SCHEMA,
        pb.Grammar.KIND_REGEX: GrammarKind.REGEX,
        pb.Grammar.KIND_GRAMMAR: GrammarKind.GRAMMAR,
        pb.Grammar.KIND_CALLS: GrammarKind.CALLS,
        pb.Grammar.KIND_TEXT: GrammarKind.TEXT,
    }
    if grammar.kind not in kinds:
        raise GrammarRejected(f"this worker knows no grammar of kind {grammar.kind}")
    reasoning = None
    if grammar.HasField("reasoning"):
        marks = grammar.reasoning
        reasoning = Reasoning(
            marks.open.encode(), marks.close.encode(), marks.started, marks.header.encode()
        )
    return GrammarSpec(kinds[grammar.kind], grammar.text, grammar.complete, reasoning)


def to_sequence(new: pb.NewSequence, grammar_cache: GrammarCache) -> NewSequence:
    """Converts a new sequence, and advances its matcher over the generated tokens."""
    matcher, fault = _matcher(new, grammar_cache) if new.HasField("grammar") else (None, None)
    return NewSequence(
        slot=new.slot,
        token_ids=_ints(new.token_ids),
        generated=new.generated,
        computed=new.computed,
        tables=_tables(new.tables),
        sampling=to_sampling(new.sampling),
        request_id=new.request_id,
        matcher=matcher,
        fault=fault,
    )


def _matcher(
    new: pb.NewSequence, grammar_cache: GrammarCache
) -> tuple[Matcher, None] | tuple[None, SlotError]:
    """Returns the matcher of a sequence, or the error for which it cannot run."""
    reasoning = new.grammar.reasoning
    budget = reasoning.budget if reasoning.HasField("budget") else None
    ends = EndConditions(tuple(new.grammar.end_token_ids), new.grammar.max_new_tokens, budget)
    emitted = new.token_ids[len(new.token_ids) - new.generated :] if new.generated else []
    try:
        spec = to_grammar_spec(new.grammar)
        if not grammar_cache.holds(spec):
            text = "the grammar was dropped because memory was short; prepare the request again"
            return None, SlotError(new.slot, text, FaultKind.UNPREPARED)
        return grammar_cache.matcher(spec, ends, emitted), None
    except Fault as error:
        if not grammar_cache.agreed(error):
            # The other ranks may run it, and would wait for this one for ever.
            raise BadStep(f"a grammar that all ranks had prepared is lost: {error}") from error
        return None, SlotError(new.slot, str(error))


def to_step(request: pb.StepRequest, grammar_cache: GrammarCache) -> Step:
    """Converts a StepRequest to arrays. Raises BadStep if its fields contradict each other."""
    copies = [
        Copies(c.group, np.array(c.sources, np.int64), np.array(c.destinations, np.int64))
        for c in request.copies
    ]
    growth = [Growth(g.group, _ints(g.counts), _ints(g.blocks)) for g in request.growth]
    new = [to_sequence(n, grammar_cache) for n in request.new]
    forks = [
        Fork(f.source, f.destination, _tables(f.tables), _signed(f.seed)) for f in request.forks
    ]
    return Step(
        epoch=request.epoch,
        step=request.step,
        finished=_ints(request.finished),
        new=new,
        forks=forks,
        copies=copies,
        growth=growth,
        run_slots=_ints(request.run_slots),
        run_tokens=_ints(request.run_tokens),
        steered_slots=_ints(request.steered_slots),
        steered_tokens=_ints(request.steered_tokens),
        received=time.perf_counter(),
    )


def _slot_error(fault: SlotError) -> pb.SlotError:
    error = pb.RequestError(kind=f"KIND_{fault.kind.name}", message=fault.message)
    return pb.SlotError(slot=fault.slot, error=error)


def from_outcome(outcome: Outcome) -> pb.StepReply:
    """Converts an outcome to a StepReply: one token for each slot that yielded."""
    errors = [_slot_error(fault) for fault in outcome.faults]
    logprob_fields: dict[str, Any] = {}
    if outcome.top_logprobs is not None:
        tops = outcome.top_logprobs
        logprob_fields = {"top_counts": tops.counts, "top_token_ids": tops.token_ids}
        logprob_fields["top_logprobs"] = tops.logprobs
    if outcome.prompt_logprobs:
        logprob_fields["prompt_logprobs"] = [
            pb.PromptLogprobs(**asdict(prompt)) for prompt in outcome.prompt_logprobs
        ]
    return pb.StepReply(
        **logprob_fields,
        epoch=outcome.epoch,
        step=outcome.step,
        slots=outcome.slots,
        counts=[1] * len(outcome.slots),
        token_ids=outcome.token_ids,
        logprobs=outcome.logprobs,
        closing=outcome.closing,
        errors=errors,
        timing=pb.StepTiming(host=outcome.host_us, device=outcome.device_us),
    )
