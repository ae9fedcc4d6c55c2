"""Rules of the slots on the device, and the choice of tokens by them.

Steps in which a yielding sequence asks for something come here; logits are adjusted only where one
asks for more than min_p and typical_p. Counts of tokens for penalties
are a function of a sequence's ids: an entering sequence brings all of them, and each choice adds
its own on the device, before the router knows the token.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from penstock_kernels import bad_words, process_logits, top_logprobs
from penstock_kernels.bad_words import ANY
from penstock_kernels.process_logits import (
    ALLOWED_BITS,
    GENERATED,
    PROMPT,
    FloatParam,
    IntParam,
    LogitsProcessorParams,
)
from torch import Tensor

from penstock.sampling import SamplingRows, choose
from penstock.worker.protocol.settings import Limits
from penstock.worker.protocol.step import Ints, LogitsProcessors, NewSequence
from penstock.worker.sampling.limits import (
    MOST_BAD_WORDS,
    MOST_BIASES,
    WORD_TOKENS,
    or_none,
)

GREEN_BITS = 32  # of a token's random number
NONE = LogitsProcessors()


def slot_bytes(vocab: int) -> int:
    """Device memory of one slot's rules: counts of 2 bytes, allowed bits, biases, bad words.

    Every slot has a row, so that no request waits or fails because none is free: 256 slots of a
    vocabulary of 128,256 take 74 MB.
    """
    words = 4 * (MOST_BAD_WORDS + 1) * WORD_TOKENS
    return 2 * vocab + -(-vocab // 8) + 8 * MOST_BIASES + words + 64


def sampling_rows(views: dict[str, Tensor]) -> SamplingRows:
    """The parameters that travel with every step."""
    return SamplingRows(
        views["temperature"],
        views["top_k"],
        views["top_p"],
        views["seed"],
        views["sample_position"],
    )


class DeviceLogitsProcessors:
    """Device tensors with a row per slot, and one more that padding reads and writes."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.vocab = limits.vocab
        self.device = device
        rows = limits.slots + 1

        def zeros(columns: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((rows, columns), dtype=dtype, device=device)

        self.params = LogitsProcessorParams(
            counts=zeros(limits.vocab, torch.int16),
            floats=zeros(len(FloatParam), torch.float32),
            ints=zeros(len(IntParam), torch.int64),
            bias_ids=zeros(MOST_BIASES, torch.int32),
            bias_values=zeros(MOST_BIASES, torch.float32),
            allowed=zeros(-(-limits.vocab // 32), torch.int32),
        )
        self.params.floats[:, FloatParam.REPETITION] = 1
        self.bad_word_counts = zeros(1, torch.int32)
        self.bad_words = zeros(MOST_BAD_WORDS * WORD_TOKENS, torch.int32)
        self.recent_tokens = zeros(WORD_TOKENS - 2, torch.int32)  # tokens before the last known one
        self.min_p_typical_p = torch.zeros(
            (2, rows), dtype=torch.float32, device=device
        )  # min_p, typical_p
        self.min_p_typical_p[1] = 1

    def enter(self, new: NewSequence) -> None:
        """Sets the rules of a sequence's slot, in one copy to the device."""
        processors, slot, params = new.sampling.logits_processors or NONE, new.slot, self.params
        prompt = len(new.token_ids) - new.generated
        ids, values = processors.bias or (np.zeros(0, np.int32), np.zeros(0, np.float32))
        bits = _allowed_bits(processors, self.vocab)
        known = new.token_ids if processors.counts else new.token_ids[:0]
        lists = ids, values.view(np.int32), bits, known[:prompt], known[prompt:]
        bad = _word_rows(processors), _recent_tokens(processors, new.token_ids)
        sent = self._sent([*_scalars(processors, len(ids), len(bits)), *lists, *bad])
        words, numbers, kept, ids_, values_, bits_, before, after, bad_, recent = sent
        self.bad_word_counts[slot] = len(processors.bad_words)
        if processors.bad_words:
            self.bad_words[slot, : len(bad_)] = bad_
            self.recent_tokens[slot] = recent
        params.ints[slot] = words.view(torch.int64)
        params.floats[slot] = numbers.view(torch.float32)
        self.min_p_typical_p[:, slot] = kept.view(torch.float32)
        params.bias_ids[slot, : len(ids)] = ids_
        params.bias_values[slot, : len(ids)] = values_.view(torch.float32)
        if len(bits):
            params.allowed[slot] = bits_
        if processors.counts:
            self._count_all(params.counts[slot], before.long(), after.long())

    def fork(self, source: int, destination: int) -> None:
        """Copies the rules of a slot to another."""
        for tensor in (
            *self.params,
            self.min_p_typical_p.t(),
            self.bad_word_counts,
            self.bad_words,
            self.recent_tokens,
        ):
            tensor[destination] = tensor[source]

    def rows(self, views: dict[str, Tensor]) -> SamplingRows:
        """How the rows' tokens are chosen, min_p and typical_p included."""
        min_p, typical_p = self.min_p_typical_p.index_select(1, views["sample_slot"]).unbind()
        return replace(sampling_rows(views), min_p=min_p, typical_p=typical_p)

    def choose(
        self, logits: Tensor, views: dict[str, Tensor], last_token: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Token ids [R] of rows [R, vocab] by their slots' rules, and the log-probabilities of
        these ids under the logits as they are; the ids are counted. Reads only static tensors."""
        slots = views["sample_slot"]
        given = views["ids"].index_select(0, views["sample_row"]).long()
        previous = torch.where(given < 0, last_token.index_select(0, slots), given)
        adjusted = process_logits(logits, slots, previous, self.params)
        words = self.bad_words.view(-1, MOST_BAD_WORDS, WORD_TOKENS)
        bad_words(
            adjusted, slots, previous, self.bad_word_counts.view(-1), words, self.recent_tokens
        )
        ids, possible = choose(adjusted, self.rows(views))
        every = torch.arange(len(ids), device=self.device)
        logprobs = top_logprobs(logits, every, ids, count=0)[0]
        self._count(slots, ids)
        # Not a number where no token was possible.
        return ids, torch.where(possible.isnan(), possible, logprobs)

    def _count(self, slots: Tensor, ids: Tensor) -> None:
        counts = self.params.counts.view(-1)
        # While kernels are only compiled, `ids` hold anything.
        places = slots * self.vocab + ids.clamp(0, self.vocab - 1)
        before = counts.index_select(0, places)
        counts.index_copy_(0, places, before + ((before & GENERATED) < GENERATED).short())

    def _count_all(self, row: Tensor, prompt: Tensor, generated: Tensor) -> None:
        row.zero_()
        row.index_fill_(0, prompt, PROMPT)
        times = torch.zeros(self.vocab, dtype=torch.int32, device=self.device)
        times.index_add_(0, generated, torch.ones_like(generated, dtype=torch.int32))
        row += times.clamp_(max=GENERATED).short()

    def _sent(self, parts: list[Ints]) -> tuple[Tensor, ...]:
        """Arrays on the device, in one copy. Waits for nothing: the memory is pinned."""
        whole = torch.from_numpy(np.concatenate(parts))
        if self.device.type == "cuda":
            whole = whole.pin_memory().to(self.device, non_blocking=True)
        return torch.split(whole, [len(part) for part in parts])


def _scalars(processors: LogitsProcessors, biases: int, bits: int) -> list[Ints]:
    """Rows of LogitsProcessorParams.ints and LogitsProcessorParams.floats, and a column of
    DeviceLogitsProcessors.min_p_typical_p."""
    mark = processors.watermark
    words, numbers = np.zeros(len(IntParam), np.int64), np.zeros(len(FloatParam), np.float32)
    words[IntParam.BIASES], words[IntParam.RESTRICTED] = biases, bits > 0
    numbers[FloatParam.REPETITION] = processors.repetition
    numbers[FloatParam.FREQUENCY] = processors.frequency
    numbers[FloatParam.PRESENCE] = processors.presence
    if mark is not None:
        words[IntParam.GREEN] = round(mark.gamma * (1 << GREEN_BITS))
        words[IntParam.KEY] = mark.key
        numbers[FloatParam.DELTA] = mark.delta
    kept = np.array([processors.min_p, processors.typical_p], np.float32)
    return [array.view(np.int32) for array in (words, numbers, kept)]


def _word_rows(processors: LogitsProcessors) -> Ints:
    """The bad words [n * WORD_TOKENS] as `bad_words` reads them: each at the end of its row."""
    rows = np.full((len(processors.bad_words), WORD_TOKENS), ANY, np.int32)
    for row, word in zip(rows, processors.bad_words, strict=True):
        row[WORD_TOKENS - len(word) :] = word
    return rows.ravel()


def _recent_tokens(processors: LogitsProcessors, known: Ints) -> Ints:
    """The tokens before the last known one, in which words are found; none without words."""
    if not processors.bad_words:
        return known[:0]
    before = known[:-1][-(WORD_TOKENS - 2) :]
    return np.concatenate([np.full(WORD_TOKENS - 2 - len(before), ANY, np.int32), before])


def _allowed_bits(processors: LogitsProcessors, vocab: int) -> Ints:
    """A bit for each token, as `process_logits` reads them; no words if all are allowed."""
    if processors.allowed is None and processors.banned is None:
        return np.zeros(0, np.int32)
    bits = np.full(-(-vocab // ALLOWED_BITS) * ALLOWED_BITS, processors.allowed is None)
    if processors.allowed is not None:
        bits[processors.allowed] = True
    bits[or_none(processors.banned)] = False
    return np.packbits(bits, bitorder="little").view(np.int32)
