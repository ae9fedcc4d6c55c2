"""What each step tells of log-probabilities, against a memory of what every slot asked."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from penstock.worker.logprobs import LogprobRequests, PromptSpan
from penstock.worker.protocol.sampling_params import SamplingParams
from penstock.worker.protocol.step import NewSequence

SLOTS, VOCAB = 8, 30


@dataclass
class Slot:
    """What the sequence in a slot asks."""

    ids: Any
    prompt: int
    request: int
    top: int = 0
    prompt_top: int | None = None
    named: Any = None


def entering(slot: int, dice: random.Random) -> tuple[NewSequence, Slot]:
    ids = np.array([dice.randrange(VOCAB) for _ in range(dice.randrange(1, 12))], np.int32)
    generated = dice.randrange(len(ids))
    asks = dice.random() < 0.7
    found = Slot(
        ids,
        len(ids) - generated,
        dice.randrange(1 << 60),
        dice.choice([0, 0, 3, 99]) if asks else 0,
        dice.choice([None, 0, 2, 99]) if asks else None,
        np.array([4, 5], np.int32) if asks and dice.random() < 0.4 else None,
    )
    sampling = SamplingParams(
        top_logprobs=found.top, prompt_logprobs=found.prompt_top, logprob_token_ids=found.named
    )
    new = NewSequence(slot, ids, generated, 0, {}, sampling, request_id=found.request)
    return new, found


def expected_logprobs(
    slots: dict[int, Slot], runs: list[tuple[int, int, int]], yields: list[bool]
) -> Any:
    """(place, alternatives, named) of each yielding run that tells some, and all spans."""
    tops, spans, place = [], [], 0
    for run, (number, start, count) in enumerate(runs):
        slot = slots[number]
        if slot.prompt_top is not None:
            targets = slot.ids[: slot.prompt][start + 1 : start + count + 1].tolist()
            top = min(slot.prompt_top, VOCAB)
            if targets:
                spans.append((run, number, slot.request, start + 1, targets, top))
        if yields[run]:
            if slot.top or slot.named is not None:
                named = [] if slot.named is None else slot.named.tolist()
                tops.append((place, min(slot.top, VOCAB), named))
            place += 1
    return tops, spans


def plain(span: PromptSpan) -> Any:
    return (span.run, span.slot, span.request_id, span.start, span.targets.tolist(), span.top)


@pytest.mark.parametrize("seed", range(20))
def test_logprob_requests_match_a_reference_model(seed: int) -> None:
    dice, requests, slots = random.Random(seed), LogprobRequests(SLOTS, VOCAB), dict[int, Slot]()
    nothing = np.zeros(0, np.int32)
    for _ in range(40):
        leaving = [slot for slot in slots if dice.random() < 0.2]
        requests.leave(np.array(leaving, np.int32))
        slots = {number: slot for number, slot in slots.items() if number not in leaving}
        if dice.random() < 0.05:
            requests.clear()
            slots.clear()
        for number in range(SLOTS):
            if number in slots or dice.random() < 0.6:
                continue
            if slots and dice.random() < 0.4:  # the source alone tells of the prompt
                source = dice.choice(list(slots))
                requests.fork(source, number)
                of = slots[source]
                slots[number] = Slot(of.ids, of.prompt, of.request, of.top, None, of.named)
            else:
                new, slots[number] = entering(number, dice)
                requests.enter(new)
        runs = []
        for number in dice.sample(sorted(slots), dice.randrange(len(slots) + 1)):
            start = dice.randrange(len(slots[number].ids))
            runs.append((number, start, dice.randrange(1, 4)))
        yields = [dice.random() < 0.6 for _ in runs]
        columns = np.array(runs, np.int32).reshape(-1, 3).T
        ids = [slots[n].ids if n in slots else nothing for n in range(SLOTS)]
        found = requests.for_step(tuple(columns), np.array(yields, np.bool_), ids)
        tops, spans = expected_logprobs(slots, runs, yields)
        if found is None:
            assert not tops and not spans
            continue
        named = [each.tolist() for each in found.token_ids] or [[] for _ in tops]
        places, counts = found.indices.tolist(), found.counts.tolist()
        assert list(zip(places, counts, named, strict=True)) == tops
        assert [plain(span) for span in found.spans] == spans


def test_sequences_without_logprobs_are_not_tracked() -> None:
    """While nobody asks, steps look no further."""
    requests = LogprobRequests(SLOTS, VOCAB)
    new, _ = entering(3, random.Random(0))
    silent = SamplingParams()
    requests.enter(NewSequence(3, new.token_ids, 0, 0, {}, silent))
    requests.fork(3, 4)
    assert not requests.slots
