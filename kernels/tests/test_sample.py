"""`sample` beyond the cases: its distribution, its random numbers, what reproduces."""

from __future__ import annotations

import pytest
import torch
from penstock_kernels import sample
from penstock_kernels.sample.noise import splitmix
from torch import Tensor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LOGITS = torch.tensor([0.5, -1.0, 2.0, 1.5, 0.0, -3.0, 1.0, -0.5])


def draw(
    logits: Tensor,
    seed: Tensor,
    position: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`sample` with one set of parameters for every row."""
    rows, device = len(seed), logits.device
    return sample(
        logits.expand(rows, -1).contiguous(),
        torch.arange(rows, device=device),
        torch.full((rows,), temperature, device=device),
        torch.full((rows,), top_k, dtype=torch.int32, device=device),
        torch.full((rows,), top_p, device=device),
        seed.to(device),
        position.to(device),
    )


def chi_square(ids: Tensor, probabilities: Tensor) -> float:
    """Pearson's statistic; tokens of probability 0 must not occur."""
    counts = torch.bincount(ids.cpu(), minlength=len(probabilities)).double()
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible].double() * len(ids)
    return float(((counts[possible] - expected) ** 2 / expected).sum())


def test_splitmix_gives_the_published_numbers() -> None:
    """The first outputs of SplitMix64, as other implementations print them."""
    answers = {
        0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
        1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423],
    }
    for seed, outputs in answers.items():
        drawn = splitmix(torch.tensor(seed), torch.arange(3))
        assert [int(word) % (1 << 64) for word in drawn] == outputs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("varied", ["seed", "position"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "kept"),
    [(1.0, 0, 1.0, 8), (0.5, 0, 1.0, 8), (1.0, 3, 1.0, 3), (1.0, 0, 0.8, 4), (2.0, 4, 0.6, 2)],
)
def test_draws_follow_the_distribution(
    device: str, varied: str, temperature: float, top_k: int, top_p: float, kept: int
) -> None:
    count = torch.arange(40_000)
    fixed = torch.full_like(count, 7)
    seed, position = (count, fixed) if varied == "seed" else (fixed, count)
    ids, _ = draw(LOGITS.to(device), seed, position, temperature, top_k, top_p)
    allowed = LOGITS.sort(descending=True).values[kept - 1] <= LOGITS
    expected = (LOGITS / temperature).masked_fill(~allowed, -torch.inf).softmax(0)
    # 99.99 % of draws lie below 29.9 at 7 degrees of freedom, and lower with fewer.
    assert chi_square(ids, expected) < 29.9


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("top_k", "top_p", "kept"), [(0, 1.0, 8), (3, 1.0, 3), (0, 0.8, 4)])
def test_draws_from_several_groups_follow_the_distribution(
    device: str, top_k: int, top_p: float, kept: int
) -> None:
    places = torch.tensor([0, 1, 4095, 4096, 5000, 8191, 8192, 9999])
    logits = torch.full((10_000,), -torch.inf)
    logits[places] = LOGITS
    seed = torch.arange(1000)
    ids, _ = draw(logits.to(device), seed, torch.full_like(seed, 3), 1.0, top_k, top_p)
    allowed = LOGITS.sort(descending=True).values[kept - 1] <= LOGITS
    expected = torch.zeros(10_000)
    expected[places] = LOGITS.masked_fill(~allowed, -torch.inf).softmax(0)
    assert chi_square(ids, expected) < 29.9  # as above


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_does_not_depend_on_its_batch(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(9, 5000, generator=generator).to(device)
    seed, position = torch.arange(9) * 12345, torch.arange(9) + 100
    options = (
        torch.arange(9, device=device),
        torch.tensor([0.0, 1.0, 0.7] * 3, device=device),
        torch.tensor([0, 0, 20] * 3, dtype=torch.int32, device=device),
        torch.tensor([1.0, 0.9, 1.0] * 3, device=device),
        seed.to(device),
        position.to(device),
    )
    ids, logprobs = sample(logits, *options)
    for row in (0, 4, 8):
        only = slice(row, row + 1)
        slots, *by_slot, positions = options
        alone, logprob = sample(logits[only], slots[only], *by_slot, positions[only])
        assert alone == ids[only]
        torch.testing.assert_close(logprob, logprobs[only])


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    """Draws at (seed, position) and at one step from it agree as often as chance has it."""
    logits, count = torch.zeros(1, 4), torch.arange(20_000)
    fixed = torch.full_like(count, 11)
    base, _ = draw(logits, count, fixed)
    for seed, position in ((count + 1, fixed), (count, fixed + 1), (count ^ (1 << 40), fixed)):
        other, _ = draw(logits, seed, position)
        assert float((base == other).float().mean()) == pytest.approx(0.25, abs=0.015)


@pytest.mark.parametrize("device", DEVICES)
def test_greedy_takes_the_lowest_of_equals(device: str) -> None:
    logits = torch.full((1, 9000), -4.0, device=device)
    logits[0, [77, 4321, 8999]] = 2.5
    ids, logprobs = draw(logits, torch.tensor([1]), torch.tensor([1]), temperature=0.0)
    assert int(ids) == 77
    assert float(logprobs) == pytest.approx(float(logits.log_softmax(-1)[0, 77]), rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_ties_at_the_threshold_stay_together(device: str) -> None:
    logits = torch.tensor([1.0, 3.0, 1.0, 1.0, -2.0], device=device)
    count = torch.arange(2000)
    ids, _ = draw(logits, count, count, top_k=2)
    assert set(ids.tolist()) == {0, 1, 2, 3}
    ids, _ = draw(logits, count, count, top_p=0.75)
    assert set(ids.tolist()) == {0, 1, 2, 3}
    ids, _ = draw(logits, count, count, top_p=0.7)
    assert set(ids.tolist()) == {1}


@pytest.mark.parametrize("device", DEVICES)
def test_nan_logits_still_give_an_id(device: str) -> None:
    """A request gone wrong must not turn into an index out of bounds for the whole batch."""
    logits = torch.full((1, 50), torch.nan, device=device)
    for temperature in (0.0, 1.0):
        ids, _ = draw(logits, torch.tensor([1]), torch.tensor([1]), temperature, top_p=0.9)
        assert 0 <= int(ids) < 50


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [8, 40])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_tokens_that_a_mask_drops_are_not_drawn(device: str, rows: int, kind: torch.dtype) -> None:
    """Fewer are left than top_k would keep: what it keeps at least is -inf."""
    logits = torch.full((1, 5_000), -torch.inf, dtype=kind, device=device)
    logits[0, [7, 90, 4_300]] = torch.tensor([1.5, -2.0, 0.0], dtype=kind, device=device)
    for top_k, top_p in ((50, 1.0), (50, 0.999), (0, 1.0)):
        ids, logprobs = draw(logits, torch.arange(rows), torch.arange(rows), 2.0, top_k, top_p)
        assert set(ids.tolist()) <= {7, 90, 4_300}
        assert logprobs.isfinite().all()
