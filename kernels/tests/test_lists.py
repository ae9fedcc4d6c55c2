"""What short lists settle of `sample`: exactly what the reference keeps, and all that they should.

On a CUDA device, or in Triton's interpreter in a process of its own: see test_interpreter.py.
"""

from __future__ import annotations

import os

import pytest
import torch
from penstock_kernels.sample import reference, triton
from penstock_kernels.sample.cases import Choice
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = pytest.mark.skipif(not INTERPRETED, reason="run by test_interpreter.py")
DEVICES = [pytest.param("cpu", marks=HERE), pytest.param("cuda", marks=pytest.mark.gpu)]
# Parameters, and whether a list settles them for peaked logits and for flat ones.
ROWS = [
    (Choice(), True, True),
    (Choice(min_p=0.05), True, False),
    (Choice(0.7, 50), True, True),
    (Choice(1.0, 1), True, True),
    (Choice(1.0, 400, 0.9), True, True),
    (Choice(1.0, 50, 1 - 2**-22), True, True),
    (Choice(1.0, 9000, 1.0, 0.3), True, True),
    (Choice(0.8, 50, 0.95, 0.01, 0.9), True, True),
    (Choice(0.9, 200, 1.0, 0.0, 0.7), True, True),
    (Choice(1.0, 0, 0.9), True, False),
    (Choice(0.4, 0, 0.5, 0.02), True, False),
    (Choice(0.1, 0, 0.5), True, True),
    (Choice(0.1, typical_p=0.6), True, True),
    (Choice(1.0, 0, 0.9, 0.1, 0.9), True, False),
    (Choice(1.0, typical_p=0.5), True, False),
    (Choice(1.0, min_p=0.1, typical_p=0.8), True, False),
    (Choice(1.0, 9000), False, False),
    (Choice(0.0), True, True),
]

# Whether logits are peaked, and their dtype. The interpreter takes some 10 s for each.
HALF = [(False, torch.float32), (True, torch.bfloat16)]
OTHER_HALF = [(True, torch.float32), (False, torch.bfloat16)]


def bits_in_order(x: Tensor) -> Tensor:
    """Keys of logits, as `bits.ordered` makes them."""
    bits = (x.float() + 0.0).view(torch.int32).long() & 0xFFFFFFFF
    return torch.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


def kept_by_reference(logits: Tensor, choices: list[Choice]) -> Tensor:
    """[S, V] bool."""
    columns = [torch.tensor(c, device=logits.device) for c in zip(*choices, strict=True)]
    temperature, top_k, top_p, min_p, typical_p = columns
    scaled = reference._scaled(logits.double(), temperature.clamp(min=1e-3))
    scaled = reference._kept_top(scaled, top_k, top_p.float())
    return reference._kept_min_p_typical_p(scaled, min_p.float(), typical_p.float()) > -torch.inf


def columns_of(choices: list[Choice], device: str) -> tuple[Tensor, ...]:
    """Slots and filters as `choose` takes them: each row has its own slot."""
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32, torch.float32)
    fields = zip(zip(*choices, strict=True), kinds, strict=True)
    slots = torch.arange(len(choices), device=device)
    return slots, *(torch.tensor(field, dtype=kind, device=device) for field, kind in fields)


def settled_and_kept(logits: Tensor, choices: list[Choice]) -> tuple[Tensor, Tensor]:
    """What `choose` says: which rows are settled by lists, and what is kept, [S, V] bool."""
    device = str(logits.device)
    draw = torch.zeros(2, len(choices), dtype=torch.int64, device=device).unbind()
    _, _, (settled, *kept) = triton.choose(logits, columns_of(choices, device), draw)
    keys = bits_in_order(logits)
    least, most = (bound.long()[:, None] & 0xFFFFFFFF for bound in kept)
    return settled == 1, (keys >= least) & (keys <= most) & (logits > -torch.inf)


@pytest.mark.parametrize(
    ("device", "peaked", "kind"),
    [
        *(pytest.param("cpu", *case, marks=HERE) for case in HALF),
        *(pytest.param("cuda", *case, marks=pytest.mark.gpu) for case in [*HALF, *OTHER_HALF]),
    ],
)
def test_lists(device: str, peaked: bool, kind: torch.dtype) -> None:
    spread = 3.0 if peaked else 0.5
    torch.manual_seed(5)
    choices = [row[0] for row in ROWS]
    vocabulary = 26_003
    logits = spread * torch.randn(len(ROWS), vocabulary)
    logits[:, :2000] += 2 * spread  # frequent tokens are neighbours
    logits[:, ::11] = -torch.inf
    logits = logits.to(device, kind)
    settled, found = settled_and_kept(logits, choices)
    expected = kept_by_reference(logits, choices)
    for row, (choice, if_peaked, if_flat) in enumerate(ROWS):
        if choice.temperature == 0:
            continue
        assert bool(settled[row]) == (if_peaked if peaked else if_flat), choice
        if settled[row]:
            assert torch.equal(found[row], expected[row]), choice


@pytest.mark.parametrize("device", DEVICES)
def test_lists_of_masked_rows(device: str) -> None:
    """Where a mask leaves few tokens, all of them are listed, however much is kept."""
    torch.manual_seed(6)
    choices = [choice for choice, *_ in ROWS if choice.temperature > 0]
    logits = torch.full((len(choices), 9_000), -torch.inf)
    logits[:, 17::300] = torch.randn(len(choices), 30)
    logits = logits.to(device)
    settled, found = settled_and_kept(logits, choices)
    assert settled.all()
    assert torch.equal(found, kept_by_reference(logits, choices))


@pytest.mark.parametrize("device", DEVICES)
def test_lists_overflow_and_numbers_that_are_none(device: str) -> None:
    """Equal logits fill more than a list has room for; NaN settles nothing."""
    logits = torch.zeros(2, 20_000, device=device)
    logits[1] = torch.nan
    draw = torch.zeros(2, 2, dtype=torch.int64, device=device).unbind()
    filters = *columns_of([Choice(1.0, 7)] * 2, device)[:4], None, None
    ids, _, (settled, _, _) = triton.choose(logits, filters, draw)
    assert settled.tolist() == [0, 0]
    assert 0 <= ids[0] < 20_000


@pytest.mark.parametrize("scale", [1.0, 1e12])
@pytest.mark.parametrize("device", DEVICES)
def test_lists_and_the_least_logits(device: str, scale: float) -> None:
    """Masks of other programs write the least float, which has no product with log2(e)."""
    choices = [Choice(0.0), Choice(), Choice(1.0, 2)]
    logits = torch.full((3, 9_000), torch.finfo(torch.float32).min)
    logits[:, 5_000:5_003] = scale * torch.tensor([1.0, 2.0, 3.0])
    logits = logits.to(device)
    draw = torch.zeros(2, 3, dtype=torch.int64, device=device).unbind()
    ids, logprobs, _ = triton.choose(logits, columns_of(choices, device), draw)
    expected = logits[:, 5_000:5_003].log_softmax(dim=-1).gather(1, ids[:, None] - 5_000)
    torch.testing.assert_close(logprobs, expected.squeeze(1))
