"""From logits to token ids: sampling parameters of the slots on the device, and sampling with them.

Sampling is a pure function of (logits, parameters, seed, position).

Sampling parameters are applied in this order, which is that of transformers for those it has:

1. logit bias
2. repetition penalty, then frequency and presence penalty
3. impossible tokens: allowed and banned token ids, min_tokens, a grammar's mask
4. watermark
5. temperature, top_k, top_p, min_p, typical_p, each on the tokens that remain

`penstock_kernels.process_logits` implements 1 to 4, `penstock_kernels.sample` implements 5; they
document the formulas. transformers adds its watermark after 5; here it changes the model's logits,
as in its paper. Temperature 0 selects the most likely token after 4.

The numbers of all slots are one array. When a sequence enters a slot, the inputs of that step
contain its row. Lists (biases, allowed tokens, bad words, token counts) are separate tables; few
sequences have any. Token counts for penalties follow from a sequence's ids: they are set when the
sequence enters, and the sampler adds each chosen token on the device, before the router knows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from penstock_kernels import bad_words, process_logits, sample, top_logprobs
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

from penstock.worker.protocol.sampling_params import (
    MOST_BAD_WORDS,
    MOST_BIASES,
    SLOT_PARAMS,
    WORD_TOKENS,
    Ints,
    SamplingParams,
    SlotParamsArray,
)
from penstock.worker.protocol.settings import Limits
from penstock.worker.protocol.step import NewSequence

ROW_WORDS = SLOT_PARAMS.itemsize // 4  # words of 4 bytes of a slot's row
LONGS = sum(SLOT_PARAMS[name].itemsize == 8 for name in SLOT_PARAMS.names or ())
ALIGNMENT = 4  # slots: columns begin at 16 bytes, as kernels like it

# Columns that `process_logits` reads by their numbers.
assert [p.name.lower() for p in IntParam] == list(SLOT_PARAMS.names or ())[2:LONGS]
assert [p.name.lower() for p in FloatParam] == list(SLOT_PARAMS.names or ())[-len(FloatParam) :]


@dataclass(frozen=True)
class SamplerColumns:
    """The slots' parameters that the sampler reads; tensors [N] on the device."""

    seed: Tensor  # int64
    top_k: Tensor  # int32; 0 = off
    temperature: Tensor  # float32; 0 = greedy
    top_p: Tensor  # float32; 1 = off
    min_p: Tensor  # float32; 0 = off
    typical_p: Tensor  # float32; 1 = off


def slot_bytes(vocab: int) -> int:
    """Returns the device memory of one slot: counts of 2 bytes, allowed bits, biases, bad words,
    numbers.

    It is reserved for every slot, so that no request waits or fails for lack of memory: 256 slots
    take 74 MB with a vocabulary of 128,256.
    """
    words = 4 * (MOST_BAD_WORDS + 1) * WORD_TOKENS
    return 2 * vocab + -(-vocab // 8) + 8 * MOST_BIASES + words + 4 * ROW_WORDS


def column_length(slots: int) -> int:
    """Returns the entries of a column: one per slot and one for padding, rounded up."""
    return -(-(slots + 1) // ALIGNMENT) * ALIGNMENT


def row_places(slots: Ints, length: int) -> Ints:
    """Returns the word indices [slots, ROW_WORDS] of rows in the array of columns of this
    length."""
    longs = np.arange(2 * LONGS) // 2 * 2 * length + np.arange(2 * LONGS) % 2
    others = (2 * LONGS + np.arange(ROW_WORDS - 2 * LONGS)) * length
    steps = np.repeat([2, 1], [2 * LONGS, ROW_WORDS - 2 * LONGS])
    places: Ints = (np.concatenate([longs, others]) + slots[:, None] * steps).astype(np.int32)
    return places


def row_words(rows: SlotParamsArray) -> Ints:
    """Returns rows as words, in the order of `row_places`."""
    return rows.view(np.int32).reshape(len(rows), ROW_WORDS)


def mask_tokens(logits: Tensor, rows: Tensor, ids: Tensor) -> None:
    """Makes token ids[i] impossible in row rows[i], in place."""
    logits[rows, ids] = -torch.inf


def choose(
    logits: Tensor, slots: Tensor, position: Tensor, columns: SamplerColumns, filtered: bool
) -> tuple[Tensor, Tensor]:
    """Samples from logits [R, V]. Returns token ids [R] int64 and their logprobs [R] float32.

    `slots` [R] int64 are the rows' entries in `columns`; `position` [R] int64, of the new token, is
    the counter of the random numbers. Without `filtered`, min_p and typical_p are ignored.

    The gathered logits are bitwise equal on all ranks, and sampling is a pure function of them. So
    all ranks get the same tokens without communication.
    """
    return sample(
        logits,
        slots,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.seed,
        position,
        columns.min_p if filtered else None,
        columns.typical_p if filtered else None,
    )


class SlotParams:
    """Device tensors with an entry per slot, and one more that padding reads and writes."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.vocab = limits.vocab
        self.device = device
        rows, length = limits.slots + 1, column_length(limits.slots)
        every = np.arange(length, dtype=np.int32)
        defaults = np.array([SamplingParams().slot_row()] * length, SLOT_PARAMS)
        self.numbers = torch.zeros(length * ROW_WORDS, dtype=torch.int32, device=device)
        places = torch.from_numpy(row_places(every, length).ravel()).long()
        self.numbers[places.to(device)] = torch.from_numpy(row_words(defaults).ravel()).to(device)
        longs = self.numbers[: 2 * LONGS * length].view(torch.int64).view(LONGS, length)
        words = self.numbers[2 * LONGS * length :].view(-1, length)
        floats = words.view(torch.float32)
        self.columns = SamplerColumns(
            seed=longs[0],
            top_k=words[0],
            temperature=floats[1],
            top_p=floats[2],
            min_p=floats[3],
            typical_p=floats[4],
        )
        self.bad_word_counts = longs[1, :rows]

        def zeros(columns: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((rows, columns), dtype=dtype, device=device)

        self.params = LogitsProcessorParams(
            counts=zeros(limits.vocab, torch.int16),
            floats=floats[-len(FloatParam) :, :rows].t(),
            ints=longs[2:, :rows].t(),
            bias_ids=zeros(MOST_BIASES, torch.int32),
            bias_values=zeros(MOST_BIASES, torch.float32),
            allowed=zeros(-(-limits.vocab // 32), torch.int32),
        )
        self.bad_words = zeros(MOST_BAD_WORDS * WORD_TOKENS, torch.int32)
        self.recent_tokens = zeros(WORD_TOKENS - 2, torch.int32)  # tokens before the last known one

    def enter(self, new: NewSequence) -> None:
        """Sets the lists of a sequence's slot, in one copy to the device."""
        sampling, slot, params = new.sampling, new.slot, self.params
        prompt = len(new.token_ids) - new.generated
        ids, values = sampling.bias or (np.zeros(0, np.int32), np.zeros(0, np.float32))
        bits = _allowed_bits(sampling, self.vocab)
        known = new.token_ids if sampling.counts else new.token_ids[:0]
        lists = ids, values.view(np.int32), bits, known[:prompt], known[prompt:]
        bad = _word_rows(sampling), _recent_tokens(sampling, new.token_ids)
        ids_, values_, bits_, before, after, bad_, recent = self._sent([*lists, *bad])
        if sampling.bad_words:
            self.bad_words[slot, : len(bad_)] = bad_
            self.recent_tokens[slot] = recent
        params.bias_ids[slot, : len(ids)] = ids_
        params.bias_values[slot, : len(ids)] = values_.view(torch.float32)
        if len(bits):
            params.allowed[slot] = bits_
        if sampling.counts:
            self._count_all(params.counts[slot], before.long(), after.long())

    def fork(self, source: int, destination: int) -> None:
        """Copies the lists of a slot to another."""
        params = self.params
        tables = params.counts, params.bias_ids, params.bias_values, params.allowed
        for tensor in (*tables, self.bad_words, self.recent_tokens):
            tensor[destination] = tensor[source]

    def choose(
        self, logits: Tensor, views: dict[str, Tensor], filtered: bool
    ) -> tuple[Tensor, Tensor]:
        """Samples from logits [R, vocab] with the parameters of their slots. Returns token ids [R]
        and their logprobs. `filtered` applies min_p and typical_p. Reads only static tensors."""
        slots, positions = views["sample_slot"], views["sample_position"]
        return choose(logits, slots, positions, self.columns, filtered)

    def process_and_choose(
        self, logits: Tensor, views: dict[str, Tensor], last_token: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `choose`, after the logits processors; counts the sampled ids. The logprobs are those
        of the unprocessed logits."""
        slots = views["sample_slot"]
        given = views["ids"].index_select(0, views["sample_row"]).long()
        previous = torch.where(given < 0, last_token.index_select(0, slots), given)
        adjusted = process_logits(logits, slots, previous, self.params)
        words = self.bad_words.view(-1, MOST_BAD_WORDS, WORD_TOKENS)
        bad_words(adjusted, slots, previous, self.bad_word_counts, words, self.recent_tokens)
        ids, possible = self.choose(adjusted, views, filtered=True)
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
        """Copies arrays to the device in one copy, from pinned memory, without waiting."""
        whole = torch.from_numpy(np.concatenate(parts))
        if self.device.type == "cuda":
            whole = whole.pin_memory().to(self.device, non_blocking=True)
        return torch.split(whole, [len(part) for part in parts])


def _word_rows(sampling: SamplingParams) -> Ints:
    """Returns the bad words [n * WORD_TOKENS] as `bad_words` reads them: each ends its row."""
    rows = np.full((len(sampling.bad_words), WORD_TOKENS), ANY, np.int32)
    for row, word in zip(rows, sampling.bad_words, strict=True):
        row[WORD_TOKENS - len(word) :] = word
    return rows.ravel()


def _recent_tokens(sampling: SamplingParams, known: Ints) -> Ints:
    """Returns the tokens before the last known one that bad words may include."""
    if not sampling.bad_words:
        return known[:0]
    before = known[:-1][-(WORD_TOKENS - 2) :]
    return np.concatenate([np.full(WORD_TOKENS - 2 - len(before), ANY, np.int32), before])


def _allowed_bits(sampling: SamplingParams, vocab: int) -> Ints:
    """Returns a bit per token, as `process_logits` reads them; empty if all are allowed."""
    if sampling.allowed is None and sampling.banned is None:
        return np.zeros(0, np.int32)
    bits = np.full(-(-vocab // ALLOWED_BITS) * ALLOWED_BITS, sampling.allowed is None)
    if sampling.allowed is not None:
        bits[sampling.allowed] = True
    if sampling.banned is not None:
        bits[sampling.banned] = False
    return np.packbits(bits, bitorder="little").view(np.int32)
