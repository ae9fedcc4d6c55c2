"""What a tape holds and what it refuses. Whole steps are compared in tests/worker/test_tapes.py."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from penstock import cpu
from penstock._core import cpu as native
from penstock.cpu.tape import Recorder, Unrecordable
from penstock_kernels import act_mul, rms_norm, sample
from torch import Tensor

cpu.install()
record = Recorder(1 << 20).record
X = torch.ones(1, 2)


@torch.inference_mode()
def test_replay_uses_the_current_tensor_contents() -> None:
    """All that a step asks of torch itself, and kernels between."""
    last = torch.tensor([5, 6, 7, 8])
    slots, places = torch.tensor([3, 1], dtype=torch.int32), torch.tensor([3, 1])
    ids = torch.zeros(2, dtype=torch.int32)
    rows, weight = torch.arange(80.0).view(10, 8).sin(), torch.linspace(0.5, 2, 8)
    kept = torch.empty(9, 4)

    def launch() -> Tensor:
        chosen = torch.where(ids < 0, last.index_select(0, slots), ids)
        x = torch.nn.functional.embedding(chosen, rows)
        y, _ = rms_norm(x, weight, 1e-5, x)
        left, _ = torch.split(y.view(len(y), -1, 2), [2, 2], dim=1)
        last.index_copy_(0, places, chosen)
        return kept[: len(y)].copy_(left.view(len(y), -1))

    replay = record(launch)
    assert last.tolist() == [5, 6, 7, 8], "recording computes nothing"
    for tokens, known in (([5, 6, 7, 4], [-1, 2]), ([1, 2, 3, 9], [-1, -1]), ([0] * 4, [7, 8])):
        last[:], ids[:] = torch.tensor(tokens), torch.tensor(known)
        expected, after = launch().clone(), last.clone()
        last[:] = torch.tensor(tokens)
        found = replay()
        assert torch.equal(found, expected)
        assert torch.equal(last, after)
        assert found.data_ptr() == kept.data_ptr()


@torch.inference_mode()
def test_tape_keeps_its_tensors_alive() -> None:
    def doubled() -> tuple[Callable[[], Tensor], Tensor]:
        x = torch.ones(3, 64)
        return record(lambda: act_mul(torch.empty(3, 64).copy_(x))), act_mul(x)

    replay, expected = doubled()
    gc.collect()
    junk = [torch.full((3, 64), 7.0) for _ in range(100)]
    assert torch.equal(replay(), expected)
    assert len(junk) == 100


@torch.inference_mode()
@pytest.mark.parametrize(
    "launch",
    [
        lambda: torch.ones(2) + 1,
        lambda: torch.zeros(2),
        lambda: torch.arange(4)[torch.tensor([1])],
        lambda: torch.empty(2, dtype=torch.int64).copy_(torch.empty(2)),
        lambda: torch.empty(4, 4).index_select(1, torch.empty(1, dtype=torch.int32)),
        lambda: torch.empty(4) < 0,
        lambda: torch.empty(4, 2, dtype=torch.int32) < 0,
        lambda: torch.where(torch.empty(2, dtype=torch.bool), torch.empty(2), torch.empty(2)),
        lambda: torch.empty(2, 3).t().index_copy_(0, torch.empty(1, dtype=torch.int64), X),
        lambda: torch.empty(4, 2, dtype=torch.float64).index_select(0, torch.empty(1).int()),
        lambda: torch.empty(3, 2).copy_(X),
        lambda: int(torch.empty(1)),
    ],
)
def test_unrecordable_ops_are_launched(launch: Callable[[], Tensor]) -> None:
    assert record(launch) is launch
    native.Tape.begin()
    assert len(native.Tape.end()) == 0


@torch.inference_mode()
def test_replay_falls_back_to_a_launch_for_other_numbers() -> None:
    logits, heat = torch.randn(2, 50), torch.zeros(2)
    top_k, top_p = torch.zeros(2, dtype=torch.int32), torch.ones(2)
    seed, position, slots = torch.tensor([1, 2]), torch.tensor([3, 4]), torch.arange(2)

    def launch() -> tuple[Tensor, Tensor]:
        return sample(logits, slots, heat, top_k, top_p, seed, position)

    replay = record(launch)
    for temperature in (0.0, 5.0, 0.0):
        heat[1] = temperature
        logits.normal_()
        for found, expected in zip(replay(), launch(), strict=True):
            assert torch.equal(found, expected)
    heat.zero_()
    assert replay()[0] is replay()[0]


def test_launch_error_ends_the_recording() -> None:
    def launch() -> Tensor:
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        record(launch)
    assert not issubclass(KeyError, Unrecordable)
    with pytest.raises(RuntimeError, match="records no tape"):
        native.Tape.end()
    native.Tape.begin()
    try:
        with pytest.raises(RuntimeError, match="already"):
            native.Tape.begin()
    finally:
        native.Tape.end()


def test_kernel_error_is_raised_by_the_replay() -> None:
    source, index, out = torch.ones(3, 2), torch.tensor([0, 2]), torch.empty(2, 2)
    native.Tape.begin()
    native.gather(source, index, out)
    tape = native.Tape.end()
    assert tape.replay()
    assert torch.equal(out, torch.ones(2, 2))
    for wrong in (3, -1):
        index[1] = wrong
        with pytest.raises(IndexError, match="row is out of range"):
            tape.replay()


def test_mismatched_rows_are_refused() -> None:
    two, three = torch.ones(2, 2), torch.ones(3, 2)
    index, flags = torch.tensor([0, 1, 2]), torch.ones(2, dtype=torch.bool)
    for call in (
        lambda: native.gather(three, index, two),
        lambda: native.scatter(two, index, three),
        lambda: native.copy(two, three),
        lambda: native.copy(torch.ones(2, 3), two),
        lambda: native.less(index, 0, flags),
        lambda: native.pick(flags, index, index, index.clone()),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            call()
    with pytest.raises(ValueError, match="expected Float32"):
        native.copy(two, two.bfloat16())


@torch.inference_mode()
def test_total_tape_size_is_bounded() -> None:
    recorder, x = Recorder(100), torch.ones(1, 16)

    def launch() -> Tensor:
        return act_mul(x)

    for _ in range(3):
        assert recorder.record(launch) is not launch
    assert recorder.record(launch) is launch
    assert recorder.room == 4
