"""What prompts tell, computed piece by piece, against one sorted table; and what steps took."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import checkpoint_maker, prompt
from driver import Stream, greedy, new_sequence
from local import LocalWorker
from penstock.worker.logprobs import (
    PIECE,
    WHOLE_PIECE,
    LogprobCollector,
    PromptSpan,
    StepLogprobRequests,
    _all_logprobs,
)
from penstock.worker.protocol.step import FaultKind, Outcome
from penstock.worker.run import runner
from penstock_kernels import top_logprobs
from torch import Tensor

VOCAB, HIDDEN = 40, 8
COUNTS = [3, 150, 1, 20, 9]  # tokens of the runs of the step
TOPS = [0, 20, 3, VOCAB, 21]


def spans(hidden: Tensor) -> list[PromptSpan]:
    """Of each run but the last token, which the next one follows; the third run tells nothing."""
    dice, found = np.random.default_rng(1), []
    for run, (count, top) in enumerate(zip(COUNTS, TOPS, strict=True)):
        if run != 2:
            targets = dice.integers(0, VOCAB, count - run % 2).astype(np.int32)
            found.append(PromptSpan(run, 10 + run, 100 + run, 5, targets, top))
    return found


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(sum(COUNTS), HIDDEN, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def matrix() -> Tensor:
    found = torch.randn(HIDDEN, VOCAB, generator=torch.Generator().manual_seed(3))
    found[:, 7] = found[:, 30]  # equally likely
    return found


def rounded(rows: Tensor, matrix: Tensor) -> Tensor:
    """Logits that do not depend on how many rows are multiplied at once."""
    return (rows.double() @ matrix.double()).mul(64).round() / 64


def collect(hidden: Tensor, matrix: Tensor, pieces: list[int] | None = None) -> Outcome:
    places = np.zeros(0, np.int64)
    collector = LogprobCollector(
        StepLogprobRequests(places, places, [], spans(hidden)), torch.device("cpu")
    )

    def head(rows: Tensor) -> Tensor:
        if pieces is not None:
            pieces.append(len(rows))
        return rounded(rows, matrix)

    collector.add_prompt_logprobs(hidden, head, np.array(COUNTS, np.int32))
    outcome = Outcome(1, 1)
    collector.add_to(outcome, places)
    return outcome


def test_prompt_logprobs_match_a_sorted_table(hidden: Tensor, matrix: Tensor) -> None:
    pieces: list[int] = []
    outcome = collect(hidden, matrix, pieces)
    assert not outcome.faults
    by_request = {each.request_id: each for each in outcome.prompt_logprobs}
    assert sorted(by_request) == [100, 101, 103, 104]
    table = rounded(hidden, matrix).log_softmax(-1)
    for span in spans(hidden):
        found, first = by_request[span.request_id], sum(COUNTS[: span.run])
        rows = table[first : first + len(span.targets)]
        assert (found.start, found.top) == (span.start, span.top)
        own = rows.gather(1, torch.from_numpy(span.targets).long()[:, None])
        assert found.logprobs == pytest.approx(own[:, 0].tolist(), abs=1e-5)
        likely, ids = rows.sort(dim=-1, descending=True, stable=True)
        assert found.ranks == [
            order.index(target) + 1
            for order, target in zip(ids.tolist(), span.targets.tolist(), strict=True)
        ]
        assert found.top_token_ids == ids[:, : span.top].flatten().tolist()
        likeliest = likely[:, : span.top].flatten().tolist()
        assert found.top_logprobs == pytest.approx(likeliest, abs=1e-5)
    few, whole = 3 + 149, 19 + 9
    assert pieces == [PIECE, few - PIECE, *[WHOLE_PIECE] * 3, whole - 3 * WHOLE_PIECE]


def test_prompt_with_nan_logits_fails_alone(hidden: Tensor, matrix: Tensor) -> None:
    hidden[1] = torch.nan
    outcome = collect(hidden, matrix)
    assert [(fault.slot, fault.kind) for fault in outcome.faults] == [(10, FaultKind.INTERNAL)]
    assert sorted(each.request_id for each in outcome.prompt_logprobs) == [101, 103, 104]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_whole_vocabulary_logprobs_are_sorted_like_top_logprobs(dtype: torch.dtype) -> None:
    """Of equally likely ones the lower id first, though bfloat16 has many of them."""
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(4)).to(dtype)
    rows, targets = torch.tensor([4, 0, 1, 2, 3]), torch.tensor([0, 299, 5, 6, 7])
    logits = logits[rows]
    each = torch.arange(5)
    some, all_ = top_logprobs(logits, each, targets, 20), _all_logprobs(logits, each, targets, 300)
    for few, whole in zip(some, all_, strict=True):
        assert few.dtype == whole.dtype
        part = whole if whole.dim() == 1 else whole[:, :20]
        torch.testing.assert_close(few, part, rtol=0, atol=1e-5)
    assert all_[2].sort(dim=1)[0].eq(torch.arange(300)).all()


@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [0, 2, 3], [1, 2], [3]])
def test_top_and_requested_logprobs_of_tokens(matrix: Tensor, kept: list[int]) -> None:
    """Each once, whichever of the runs brought a token. Run 1 asks for nothing."""
    hidden = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(5))
    logits = rounded(hidden, matrix)
    table = logits.log_softmax(-1)
    likely = table.sort(dim=-1, descending=True, stable=True)[1].tolist()
    chosen = [likely[0][1], likely[1][0], likely[2][3], likely[3][0]]
    names = {0: [likely[0][0], likely[0][9]], 2: [likely[2][5], likely[2][4]], 3: list[int]()}
    counts = {0: 3, 2: 0, 3: 2}
    asked = StepLogprobRequests(
        np.array([0, 2, 3]),
        np.array(list(counts.values())),
        [np.array(ids, np.int32) for ids in names.values()],
        [],
    )
    collector = LogprobCollector(asked, torch.device("cpu"))
    rows = [2, 0, 3, 1]  # of the samples, by run
    order = torch.tensor(rows).argsort()
    collector.add_top_logprobs(logits[order], torch.tensor(chosen)[order], np.array(rows))
    tokens = [chosen[run] for run in kept]
    outcome = Outcome(1, 1, token_ids=tokens, logprobs=[0.5] * len(kept))
    collector.add_to(outcome, np.array(kept))
    expected = [
        likely[run][: counts[run]]
        + [name for name in names[run] if name not in likely[run][: counts[run]]]
        if run in counts
        else []
        for run in kept
    ]
    assert outcome.top_logprobs is not None
    assert outcome.top_logprobs.counts == [len(ids) for ids in expected]
    assert outcome.top_logprobs.token_ids == [id_ for ids in expected for id_ in ids]
    result = [
        table[run, id_].item() for run, ids in zip(kept, expected, strict=True) for id_ in ids
    ]
    assert outcome.top_logprobs.logprobs == pytest.approx(result, abs=1e-5)
    own = [table[run, chosen[run]].item() if run != 1 else 0.5 for run in kept]
    assert outcome.logprobs == pytest.approx(own, abs=1e-5)


def test_step_reports_host_and_device_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second at each look: when a launch begins, when its inputs are
    there, when it ends, and when its tokens are."""
    worker, hosts, now = LocalWorker(), list[Any](), [0.0]
    worker.load(checkpoint_maker(tmp_path)("llama2"))
    launch = worker.runner.launch

    def look() -> float:
        now[0] += 1
        return now[0]

    def noted(step: Any) -> Any:
        pending = launch(step)
        hosts.append((pending.host, pending.launched))
        return pending

    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=look))
    monkeypatch.setattr(worker.runner, "launch", noted)
    stream, sequence = Stream([worker], 1), greedy(prompt(9))  # type: ignore[list-item]
    sequence.slot = 0
    for number in range(runner.RING + 1):
        new = [] if number else [new_sequence(sequence, 0, [0])]
        stream.send(new=new, run_slots=[0], run_tokens=[1 if number else 9])
        timing = stream.receive().timing
        assert (timing.host, timing.device) == (1_000_000, 2_000_000)
    stream.close()
    assert [times for _, times in hosts] == [(4.0 * n + 1, 4.0 * n + 3) for n in range(5)]
    # Each step in flight has a buffer of its own.
    buffers = [host for host, _ in hosts]
    assert len({id(host) for host in buffers[:-1]}) == runner.RING and buffers[-1] is buffers[0]
