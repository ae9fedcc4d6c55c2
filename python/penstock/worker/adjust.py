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
from penstock_kernels import adjust, bad_words, top_logprobs
from penstock_kernels.adjust import GENERATED, PROMPT, Number, Rules, Word
from torch import Tensor

from penstock.sampling import SamplingRows, choose
from penstock.worker.adjustment import (
    MOST_BAD_WORDS,
    MOST_BIASES,
    WORD_TOKENS,
    allowed_bits,
    recent_tokens,
    word_rows,
)
from penstock.worker.shape import Views, sampling_rows
from penstock.worker.state import Limits
from penstock.worker.step import Adjustment, Ints, NewSequence

GREEN_BITS = 32  # of a token's random number
NONE = Adjustment()


def slot_bytes(vocab: int) -> int:
    """Device memory of one slot's rules: counts of 2 bytes, allowed bits, biases, bad words.

    Every slot has a row, so that no request ever waits, or fails, for want of one: 256 slots of a
    vocabulary of 128,256 take 74 MB.
    """
    words = 4 * (MOST_BAD_WORDS + 1) * WORD_TOKENS
    return 2 * vocab + -(-vocab // 8) + 8 * MOST_BIASES + words + 64


class Adjuster:
    """Device tensors with a row per slot, and one more that padding reads and writes."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.vocab = limits.vocab
        self.device = device
        rows = limits.slots + 1

        def zeros(columns: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((rows, columns), dtype=dtype, device=device)

        self.rules = Rules(
            counts=zeros(limits.vocab, torch.int16),
            numbers=zeros(len(Number), torch.float32),
            words=zeros(len(Word), torch.int64),
            bias_ids=zeros(MOST_BIASES, torch.int32),
            bias_values=zeros(MOST_BIASES, torch.float32),
            allowed=zeros(-(-limits.vocab // 32), torch.int32),
        )
        self.rules.numbers[:, Number.REPETITION] = 1
        self.word_counts = zeros(1, torch.int32)
        self.words = zeros(MOST_BAD_WORDS * WORD_TOKENS, torch.int32)
        self.recent = zeros(WORD_TOKENS - 2, torch.int32)  # tokens before the last known one
        self.kept = torch.zeros((2, rows), dtype=torch.float32, device=device)  # min_p, typical_p
        self.kept[1] = 1

    def enter(self, new: NewSequence) -> None:
        """Sets the rules of a sequence's slot, in one copy to the device."""
        asked, slot, rules = new.sampling.adjustment or NONE, new.slot, self.rules
        prompt = len(new.token_ids) - new.generated
        ids, values = asked.bias or (np.zeros(0, np.int32), np.zeros(0, np.float32))
        bits = allowed_bits(asked, self.vocab)
        known = new.token_ids if asked.counts else new.token_ids[:0]
        lists = ids, values.view(np.int32), bits, known[:prompt], known[prompt:]
        bad = word_rows(asked), recent_tokens(asked, new.token_ids)
        sent = self._sent([*_scalars(asked, len(ids), len(bits)), *lists, *bad])
        words, numbers, kept, ids_, values_, bits_, before, after, bad_, recent = sent
        self.word_counts[slot] = len(asked.bad_words)
        if asked.bad_words:
            self.words[slot, : len(bad_)] = bad_
            self.recent[slot] = recent
        rules.words[slot] = words.view(torch.int64)
        rules.numbers[slot] = numbers.view(torch.float32)
        self.kept[:, slot] = kept.view(torch.float32)
        rules.bias_ids[slot, : len(ids)] = ids_
        rules.bias_values[slot, : len(ids)] = values_.view(torch.float32)
        if len(bits):
            rules.allowed[slot] = bits_
        if asked.counts:
            self._count_all(rules.counts[slot], before.long(), after.long())

    def fork(self, source: int, destination: int) -> None:
        """Copies the rules of a slot to another."""
        for tensor in (*self.rules, self.kept.t(), self.word_counts, self.words, self.recent):
            tensor[destination] = tensor[source]

    def rows(self, views: Views) -> SamplingRows:
        """How the rows' tokens are chosen, min_p and typical_p included."""
        min_p, typical_p = self.kept.index_select(1, views["sample_slot"]).unbind()
        return replace(sampling_rows(views), min_p=min_p, typical_p=typical_p)

    def choose(self, logits: Tensor, views: Views, last_token: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [R] of rows [R, vocab] by their slots' rules, and the log-probabilities of
        these ids under the logits as they are; the ids are counted. Reads only static tensors."""
        slots = views["sample_slot"]
        given = views["ids"].index_select(0, views["sample_row"]).long()
        previous = torch.where(given < 0, last_token.index_select(0, slots), given)
        adjusted = adjust(logits, slots, previous, self.rules)
        words = self.words.view(-1, MOST_BAD_WORDS, WORD_TOKENS)
        bad_words(adjusted, slots, previous, self.word_counts.view(-1), words, self.recent)
        ids, possible = choose(adjusted, self.rows(views))
        every = torch.arange(len(ids), device=self.device)
        logprobs = top_logprobs(logits, every, ids, count=0)[0]
        self._count(slots, ids)
        # Not a number where no token was possible.
        return ids, torch.where(possible.isnan(), possible, logprobs)

    def _count(self, slots: Tensor, ids: Tensor) -> None:
        counts = self.rules.counts.view(-1)
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


def _scalars(asked: Adjustment, biases: int, bits: int) -> list[Ints]:
    """Rows of Rules.words and Rules.numbers, and a column of Adjuster.kept."""
    mark = asked.watermark
    words, numbers = np.zeros(len(Word), np.int64), np.zeros(len(Number), np.float32)
    words[Word.BIASES], words[Word.RESTRICTED] = biases, bits > 0
    numbers[Number.REPETITION] = asked.repetition
    numbers[Number.FREQUENCY] = asked.frequency
    numbers[Number.PRESENCE] = asked.presence
    if mark is not None:
        words[Word.GREEN] = round(mark.gamma * (1 << GREEN_BITS))
        words[Word.KEY] = mark.key
        numbers[Number.DELTA] = mark.delta
    kept = np.array([asked.min_p, asked.typical_p], np.float32)
    return [array.view(np.int32) for array in (words, numbers, kept)]
