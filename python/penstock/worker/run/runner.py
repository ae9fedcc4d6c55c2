"""Runs packed steps on the device: slot state, model, sampler.

The runner only launches. It waits only for the previous tokens, if a step has grammar masks, and
for the device, before a capture.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from penstock_kernels import apply_mask, copy_blocks, top_logprobs
from torch import Tensor

from penstock.cache import KvMemory
from penstock.faults import BadStep
from penstock.layers.attention import Chunks, Decodes, KvPlaces, StepContext
from penstock.models import Model
from penstock.parallel import Group
from penstock.worker.batch import (
    Packed,
    Packer,
    Shape,
    Views,
    buffer_words,
    fill_padding,
    kv_slot,
    most_samples,
    tensors,
)
from penstock.worker.grammar_masks import ForwardPass, GrammarMasks
from penstock.worker.logprobs import PIECE, LogprobCollector
from penstock.worker.protocol.step import FaultKind, Ints, Longs, Outcome, SlotError, Step
from penstock.worker.run.graphs import Capture, Graphs, Stages, Tokens
from penstock.worker.sampling import SlotParams, mask_tokens
from penstock.worker.state import State, Work

# Host buffers in rotation. A step's buffer is written again only after its outcome was taken: one
# step is being launched, two wait in the reply queue, one is being taken from it.
RING = 4
REPLIES_WAITING = RING - 2
VIEWS_KEPT = 512  # of step shapes: more than are padded


@dataclass(frozen=True)
class RankModel:
    """One rank's model and its memory on the device. Made by the loader."""

    model: Model
    group: Group
    kv: KvMemory
    device: torch.device
    dtype: torch.dtype
    """Of activations and logits."""


class HostBuffers:
    """Host memory of one step in flight; pinned for a GPU, so that copies overlap with work."""

    def __init__(self, words: int, samples: int, device: torch.device) -> None:
        pin = device.type == "cuda"
        self.inputs = torch.zeros(words, dtype=torch.int32, pin_memory=pin)
        self.ids = torch.zeros(samples, dtype=torch.int64, pin_memory=pin)
        self.logprobs = torch.zeros(samples, dtype=torch.float32, pin_memory=pin)
        self.array: Ints = self.inputs.numpy()
        self.begin = torch.cuda.Event(enable_timing=True) if pin else None
        # Blocking: the reply thread sleeps until the tokens are here; else it spins on a core.
        self.end = torch.cuda.Event(enable_timing=True, blocking=True) if pin else None


@dataclass(frozen=True)
class Pending:
    """A launched step whose tokens are on their way to the host."""

    step: Step
    work: Work
    samples: Longs  # rows of the yielding runs
    host: HostBuffers
    host_us: int
    launched: tuple[float, float]  # begin and end of the launch, on the host's clock
    logprob_collector: LogprobCollector | None = (
        None  # log-probabilities beside those of the tokens
    )

    def arrived(self) -> bool:
        """Whether the device is done with the step, and with all before it."""
        return self.host.end is None or self.host.end.query()

    def arrive(self) -> None:
        """Blocks until the device is done with the step, and with all before it."""
        if self.host.end is not None:
            self.host.end.synchronize()

    def wait(self) -> Outcome:
        """Blocks until the tokens are here. Rows that are not numbers become faults."""
        host, work = self.host, self.work
        device_us = int((time.perf_counter() - self.launched[0]) * 1e6) - self.host_us
        self.arrive()
        if host.begin is not None and host.end is not None:
            device_us = int(host.begin.elapsed_time(host.end) * 1e3)
        outcome = Outcome(self.step.epoch, self.step.step, faults=work.faults)
        outcome.closing = work.closing
        outcome.host_us, outcome.device_us = self.host_us, device_us
        slots = work.slots[work.yields][work.run_order]
        rows = self.samples[work.run_order]
        ids, logprobs = host.ids.numpy()[rows], host.logprobs.numpy()[rows]
        found = zip(slots.tolist(), ids.tolist(), logprobs.tolist(), strict=True)
        for slot, token_id, logprob in found:
            if slot in work.late:
                continue
            if slot in work.refused:
                outcome.faults.append(SlotError(slot, work.refused[slot]))
            elif math.isnan(logprob):
                text = "the model's logits are not finite numbers for this sequence"
                outcome.faults.append(SlotError(slot, text, FaultKind.INTERNAL))
            else:
                outcome.slots.append(slot)
                outcome.token_ids.append(token_id)
                outcome.logprobs.append(logprob)
        if self.logprob_collector is not None:
            yielded = ~(np.isnan(logprobs) | np.isin(slots, [*work.refused, *work.late]))
            self.logprob_collector.add_to(outcome, work.run_order[yielded])
        return outcome


class Runner:
    """Device-resident state of the slots, and the launch of a step. Used by one thread only."""

    def __init__(self, rank_model: RankModel, state: State, capture: Capture | None = None) -> None:
        self.rank_model = rank_model
        self.state = state
        limits, device = state.limits, rank_model.device
        self.packer = Packer(state, pad=device.type == "cuda")
        words, samples = buffer_words(limits), most_samples(limits)
        groups = len(limits.pools)
        self.ring = [HostBuffers(words, samples, device) for _ in range(RING)]
        self.launched = 0
        waits = rank_model.group.size > 1 or limits.has_states
        self.grammar_masks = GrammarMasks(limits.vocab, device, waits)
        # One for all steps, so that graphs find them at the same place.
        self.inputs = torch.zeros_like(self.ring[0].inputs, device=device)
        self.views = lru_cache(VIEWS_KEPT)(lambda shape: tensors(shape, self.inputs, groups))
        self.graphs: Graphs | None = None
        if capture is not None:
            shape = samples, limits.vocab
            logits = torch.empty(shape, dtype=rank_model.dtype, device=device)
            self.graphs = Graphs(capture, logits)
        # Pieces of work for the time when no step is waiting.
        self.spare_work: Iterator[None] = iter(())
        # One row more than slots: padded rows read and write it.
        rows = limits.slots + 1
        self.last_token = torch.zeros(rows, dtype=torch.int64, device=device)
        tables = (groups, rows, limits.table_blocks)
        self.tables = torch.zeros(tables, dtype=torch.int32, device=device)
        names = [kv_slot(group) for group in range(groups)]
        self.tables_of = list(zip(self.tables, names, strict=True))  # with each slot_mapping's name
        self.slot_params = SlotParams(limits, device)

    def launch(self, step: Step) -> Pending:
        """Applies one step to the state and launches it. Raises BadStep if it breaks the
        protocol."""
        try:
            return self._launch(step)
        except BadStep:
            raise  # nothing has changed
        except BaseException:
            self.state.broken = True
            raise

    def _launch(self, step: Step) -> Pending:
        began = time.perf_counter()
        if step.epoch != self.state.epoch:
            self.grammar_masks.clear()
        if step.forks and self.state.matchers:
            self.grammar_masks.read()
        work = self.state.fold(step)
        host = self.ring[self.launched % RING]
        self.grammar_masks.release(host)
        self.launched += 1
        packed = self.packer.pack(step, work, host.array)
        packed_at = time.perf_counter()
        if host.begin is not None:
            host.begin.record()
        collector = (
            LogprobCollector(work.logprob_requests, self.rank_model.device)
            if work.logprob_requests is not None
            else None
        )
        self._update_lists(work)
        self._run(packed, host, work, collector)
        if host.end is not None:
            host.end.record()
        host_us = int((packed_at - began) * 1e6)
        launched = began, time.perf_counter()
        return Pending(step, work, packed.samples, host, host_us, launched, collector)

    def _update_lists(self, work: Work) -> None:
        """Copies the lists in the sampling parameters of entering sequences to the device."""
        for new in work.list_entries:
            self.slot_params.enter(new)
        for source, destination in work.list_forks:
            self.slot_params.fork(source, destination)

    def _run(
        self, packed: Packed, host: HostBuffers, work: Work, collector: LogprobCollector | None
    ) -> None:
        buffer = self.inputs
        buffer[: packed.words].copy_(host.inputs[: packed.words], non_blocking=True)
        masks = self._apply_extras(packed, buffer)
        shape = packed.shape
        if shape.tokens == 0:
            return
        views = self.views(shape)
        stages = self.stages(shape, views)
        if collector is not None and collector.requests.spans:
            # Every row's hidden state is needed here, which a captured forward does not compute.
            hidden = self.hidden(shape, views)
            collector.add_prompt_logprobs(hidden, self.rank_model.model.logits, work.counts)
            head = partial(self.logits_of, hidden, views)
            stages = replace(stages, forward=head)
        elif shape.samples == 0:
            self.hidden(shape, views, views["sample_row"])
        elif self.graphs is not None:
            stages = self.graphs.lookup(shape, stages)
        if shape.samples == 0:
            return
        forward = ForwardPass(self.rank_model.device) if work.constrained else None
        logits = stages.forward()
        if masks is not None:
            mask_tokens(logits, *masks)
        if forward is not None:
            forward.launched()
            self._apply_grammar_masks(logits, packed, work, host, forward)
        ids, logprobs = stages.samplers[work.sampler_variant](logits)
        if collector is not None:
            collector.add_top_logprobs(logits, ids, packed.samples)
        host.ids[: shape.samples].copy_(ids, non_blocking=True)
        host.logprobs[: shape.samples].copy_(logprobs, non_blocking=True)
        if work.constrained and host.end is None:
            self.grammar_masks.read()  # the tokens are here: the next masks may begin

    def _apply_grammar_masks(
        self, logits: Tensor, packed: Packed, work: Work, host: HostBuffers, forward: ForwardPass
    ) -> None:
        """Masks the logits of constrained rows. If a mask is late, the token of its row goes to the
        spare slot, which no sequence has."""
        filled = self.grammar_masks.masks(work, packed.samples, forward)
        if filled is not None:
            apply_mask(logits, *filled)
        self.grammar_masks.expect(work, packed.samples, host)
        if work.late:
            slots = work.slots[work.yields].tolist()
            places = [place for place, slot in enumerate(slots) if slot in work.late]
            rows = torch.as_tensor(packed.samples[places], device=self.rank_model.device)
            views = self.views(packed.shape)
            views["sample_slot"].index_fill_(0, rows, self.packer.spare)
            self.state.sit_out(work.late)

    def warmup_stages(self, shape: Shape) -> Stages:
        """Fills the inputs of an empty step and returns its stages, for warm-up."""
        views = self.views(shape)
        fill_padding(views, self.packer.spare)
        return self.stages(shape, views)

    def warmup_extras(self, shape: Shape) -> None:
        """Launches the GPU kernels that steps use beside their stages: prompt logprobs, grammar
        masks and copies for forks. State does not change: the masks allow all tokens, and a block
        is copied onto itself."""
        views = self.views(shape)
        fill_padding(views, self.packer.spare)
        hidden = self.hidden(shape, views)
        rows = torch.zeros(PIECE, dtype=torch.int64, device=self.rank_model.device)
        logits = self.rank_model.model.logits(hidden.index_select(0, rows))
        top_logprobs(logits, rows, rows, 1)
        first = torch.zeros(1, dtype=torch.int32, device=self.rank_model.device)
        apply_mask(logits, first, first.new_full((1, self.grammar_masks.words), -1))
        kv = self.rank_model.kv
        for group in range(kv.groups):
            for cache in kv.tensors_of(group):
                copy_blocks(cache, first.long(), first.long())

    def stages(self, shape: Shape, views: Views) -> Stages:
        """Returns the stages of a step, launched kernel by kernel."""
        samplers = self.choose, self.choose_filtered, self.choose_processed
        return Stages(
            partial(self.forward, shape, views),
            tuple(partial(sampler, views) for sampler in samplers),
        )

    def hidden(self, shape: Shape, views: Views, rows: Tensor | None = None) -> Tensor:
        """Returns hidden states [T, hidden], or those of `rows`. Reads only static tensors."""
        last = self.last_token.index_select(0, views["id_slot"])
        ids = torch.where(views["ids"] < 0, last, views["ids"])
        return self.rank_model.model.forward(ids, self._context(shape, views), rows)

    def forward(self, shape: Shape, views: Views) -> Tensor:
        """Returns the logits [R, vocab] of the yielding rows."""
        rows = None if shape.samples_every_row else views["sample_row"]
        return self.rank_model.model.logits(self.hidden(shape, views, rows))

    def logits_of(self, hidden: Tensor, views: Views) -> Tensor:
        """Returns the logits of the yielding rows, from the hidden states of all rows [T,
        hidden]."""
        return self.rank_model.model.logits(hidden.index_select(0, views["sample_row"]))

    def choose(self, views: Views, logits: Tensor) -> Tokens:
        """Samples from logits [R, vocab]. Returns ids, now the last tokens of their slots, and
        logprobs."""
        return self._chosen(views, self.slot_params.choose(logits, views, filtered=False))

    def choose_filtered(self, views: Views, logits: Tensor) -> Tokens:
        """As `choose`, with min_p and typical_p."""
        return self._chosen(views, self.slot_params.choose(logits, views, filtered=True))

    def choose_processed(self, views: Views, logits: Tensor) -> Tokens:
        """As `choose_filtered`, after the logits processors."""
        tokens = self.slot_params.process_and_choose(logits, views, self.last_token)
        return self._chosen(views, tokens)

    def _chosen(self, views: Views, tokens: Tokens) -> Tokens:
        self.last_token.index_copy_(0, views["sample_slot"], tokens[0])
        return tokens

    def _context(self, shape: Shape, views: Views) -> StepContext:
        decodes, chunks = None, None
        if shape.decodes:
            slots, lengths = views["decode_slot"], views["decode_kv_len"]
            decodes = Decodes(shape.decodes, slots, lengths)
        if shape.chunks:
            slots, lengths = views["chunk_slot"], views["chunk_kv_len"]
            start = views["query_start"]
            chunks = Chunks(slots, start, lengths, shape.max_query)
        kv = self.rank_model.kv
        groups = [KvPlaces(tables, views[name]) for tables, name in self.tables_of]
        places = [groups[group] for group in kv.group_of]
        return StepContext(views["position"], places, kv.caches, decodes, chunks)

    def _apply_extras(self, packed: Packed, buffer: Tensor) -> tuple[Tensor, Tensor] | None:
        """Applies table writes, forks, block copies, steered tokens and sampling parameters.
        Returns the (rows, ids) to mask, if any."""
        extras, at = packed.extras, packed.words
        pairs: list[tuple[Tensor, Tensor] | None] = []
        groups = reversed(extras.copies)
        counts = (
            extras.params, extras.masks, extras.steered, *groups, extras.forks, extras.writes
        )  # fmt: skip
        if not any(counts):
            return None
        for count in counts:
            second, first = buffer[at - count : at], buffer[at - 2 * count : at - count]
            pairs.append((first.long(), second) if count else None)
            at -= 2 * count
        params, masks, steered, *copies, forks, writes = pairs
        if params is not None:
            self.slot_params.numbers[params[0]] = params[1]
        if writes is not None:
            self.tables.view(-1)[writes[0]] = writes[1]
        if forks is not None:
            self.last_token[forks[1].long()] = self.last_token[forks[0]]
        for group, pair in enumerate(reversed(copies)):
            if pair is not None:
                for cache in self.rank_model.kv.tensors_of(group):
                    copy_blocks(cache, pair[0], pair[1].long())
        if steered is not None:
            self.last_token[steered[0]] = steered[1].long()
        return (masks[0], masks[1].long()) if masks is not None else None
