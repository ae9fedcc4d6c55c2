"""Routing and experts: rules of the choice, and what the ops refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from penstock_kernels import expert_mlp, route_experts, use
from penstock_kernels.expert_mlp import Activation, Experts
from penstock_kernels.expert_mlp.experts import Matrices
from penstock_kernels.expert_mlp.plan import Grouped, Problem, Vectors, most_tiles, plan
from penstock_kernels.packed_linear import Kind, PackedWeight, pack
from penstock_kernels.route_experts import GroupScore, Routed, Routing, Score
from torch import Tensor


def row(*logits: float) -> Tensor:
    return torch.tensor([logits], dtype=torch.float32)


def test_equal_logits_choose_the_lowest_ids() -> None:
    routed = route_experts(row(1, 2, 1, 2, 2), None, Routing(4))
    assert routed.ids.tolist() == [[1, 3, 4, 0]]
    assert routed.ids.dtype == torch.int32 and routed.weights.dtype == torch.float32


def test_scores_weight_the_chosen() -> None:
    logits = row(0, 3, -1, 2)
    everyone = route_experts(logits, None, Routing(2))
    torch.testing.assert_close(everyone.weights, logits.softmax(-1)[:, [1, 3]])
    chosen = route_experts(logits, None, Routing(2, score_after_choice=True))
    torch.testing.assert_close(chosen.weights, row(3, 2).softmax(-1))
    # Mixtral's rule: the softmax of all, renormalised, is that of the chosen.
    same = route_experts(logits, None, Routing(2, renormalise=True))
    torch.testing.assert_close(same.weights, chosen.weights)
    scaled = route_experts(logits, None, Routing(2, Score.SIGMOID, scale=2.5))
    torch.testing.assert_close(scaled.weights, 2.5 * row(3, 2).sigmoid())
    root = route_experts(logits, None, Routing(2, Score.SQRT_SOFTPLUS))
    torch.testing.assert_close(root.weights, row(3, 2).exp().add(1).log().sqrt())


def test_the_bias_is_for_the_choice_only() -> None:
    bias = torch.tensor([0.0, -9.0, 0.0, 9.0])
    routed = route_experts(row(1, 5, 2, -3), bias, Routing(2, Score.SIGMOID))
    assert routed.ids.tolist() == [[3, 2]]
    torch.testing.assert_close(routed.weights, row(-3, 2).sigmoid())


def test_only_experts_of_the_best_groups_are_chosen() -> None:
    logits = row(5, -9, 3, 3, 4, -8)
    best = Routing(2, Score.SIGMOID, groups=3)
    assert route_experts(logits, None, best).ids.tolist() == [[0, 1]]
    two = replace(best, group_score=GroupScore.TOP2_SUM)
    assert route_experts(logits, None, two).ids.tolist() == [[2, 3]]
    # A lost group has the better experts, and biases may make every key negative.
    lost = replace(two, kept_groups=2)
    assert route_experts(logits, torch.full((6,), -5.0), lost).ids.tolist() == [[0, 2]]


def test_routings_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match="top_k is 0"):
        Routing(0)
    with pytest.raises(ValueError, match="kept_groups is 3; expected 1 to 2"):
        Routing(1, groups=2, kept_groups=3)
    with pytest.raises(ValueError, match="score_after_choice with 2 groups"):
        Routing(1, Score.SIGMOID, score_after_choice=True, groups=2)


@pytest.mark.parametrize(
    ("experts", "routing", "message"),
    [
        (6, Routing(1, groups=4), "6 experts, which 4 groups"),
        (4, Routing(1, groups=4, group_score=GroupScore.TOP2_SUM), "4 experts, which 4 groups"),
        (8, Routing(3, groups=4), "top_k is 3; expected up to 2"),
        (1025, Routing(1), "expected up to 1024"),
    ],
)
def test_logits_that_do_not_fit_the_routing_are_refused(
    experts: int, routing: Routing, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        route_experts(torch.zeros(1, experts), None, routing)
    with pytest.raises(ValueError, match="bias has shape"):
        route_experts(torch.zeros(1, 8), torch.zeros(7), Routing(1))


def some() -> tuple[Tensor, Routed, Experts]:
    ids = torch.tensor([[1, 0], [2, 1], [0, 2]], dtype=torch.int32)
    experts = Experts(torch.randn(3, 8, 6), torch.randn(3, 6, 4))
    return torch.randn(3, 6), Routed(ids, torch.rand(3, 2)), experts


def test_experts_of_ranks_add_up() -> None:
    x, routed, experts = some()
    parts = [
        replace(experts, gate_up=experts.gate_up[at], down=experts.down[at], first=at.start)
        for at in (slice(0, 1), slice(1, 3))
    ]
    total = sum(expert_mlp(x, routed, part) for part in parts)
    torch.testing.assert_close(total, expert_mlp(x, routed, experts))


def test_plans_do_not_depend_on_how_experts_are_shared_out() -> None:
    """Of few tokens, a rank with few experts must not round what a rank with all does not."""
    from penstock_kernels.expert_mlp.triton import problem_of

    x, routed, experts = some()
    part = replace(experts, gate_up=experts.gate_up[1:], down=experts.down[1:], first=1)
    part = replace(part, elsewhere=1)
    assert problem_of(x, routed, part) == problem_of(x, routed, experts)


def test_gpt_oss_clamps_gates_from_above_and_ups_on_both_sides() -> None:
    gate_up = torch.tensor([9.0, -9.0, 1.0, 1.0, 1.0, 1.0, 9.0, -9.0])
    weights = torch.nn.functional.pad(gate_up[:, None], (0, 3))[None]
    experts = Experts(weights, torch.eye(4)[None], activation=Activation.CLAMPED_SWIGLU)
    routed = Routed(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1))
    gate, up = torch.tensor([7.0, -9.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 7.0, -7.0])
    expected = gate * (1.702 * gate).sigmoid() * (up + 1)
    torch.testing.assert_close(expert_mlp(torch.ones(1, 4), routed, experts), expected[None])


def test_hunyuan_limits_gates_from_above_and_ups_on_both_sides() -> None:
    gate_up = torch.tensor([12.0, -12.0, 1.0, 1.0, 1.0, 1.0, 12.0, -12.0])
    weights = torch.nn.functional.pad(gate_up[:, None], (0, 3))[None]
    experts = Experts(weights, torch.eye(4)[None], activation=Activation.LIMITED_SILU)
    routed = Routed(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1))
    gate, up = torch.tensor([10.0, -12.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 10.0, -10.0])
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(expert_mlp(torch.ones(1, 4), routed, experts), expected[None])


def test_step_bounds_activated_gates_from_above_and_ups_on_both_sides() -> None:
    gate_up = torch.tensor([12.0, -12.0, 7.004, 1.0, 1.0, 1.0, 12.0, -12.0])
    weights = torch.nn.functional.pad(gate_up[:, None], (0, 3))[None]
    experts = Experts(weights, torch.eye(4)[None], activation=Activation.CAPPED_SILU)
    routed = Routed(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1))
    activated = torch.nn.functional.silu(torch.tensor([12.0, -12.0, 7.004, 1.0]))
    assert activated[2] < 7  # though the gate is above
    gate, up = activated.clamp(max=7), torch.tensor([1.0, 1.0, 7.0, -7.0])
    torch.testing.assert_close(expert_mlp(torch.ones(1, 4), routed, experts), (gate * up)[None])


def test_inkling_2_caps_gates_and_ups_softly_and_activates_gates_as_they_are() -> None:
    gate_up = torch.tensor([12.0, -12.0, 0.03, 1.0, 1.0, 1.0, 0.1, -90.0])
    weights = torch.nn.functional.pad(gate_up[:, None], (0, 3))[None]
    experts = Experts(weights, torch.eye(4)[None], activation=Activation.SOFTCAPPED_SILU)
    routed = Routed(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1))
    gate, up = gate_up.chunk(2)
    expected = 4 * (gate / 4).tanh() * gate.sigmoid() * 25 * (up / 25).tanh()
    torch.testing.assert_close(expert_mlp(torch.ones(1, 4), routed, experts), expected[None])


def test_experts_without_a_gate_square_what_is_positive() -> None:
    weights = torch.nn.functional.pad(torch.tensor([3.0, -2.0])[:, None], (0, 1))[None]
    experts = Experts(weights, torch.eye(2)[None], activation=Activation.RELU_SQUARED)
    routed = Routed(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1))
    found = expert_mlp(torch.ones(1, 2), routed, experts)
    torch.testing.assert_close(found, torch.tensor([[9.0, 0.0]]))


def test_experts_that_do_not_fit_are_refused() -> None:
    x, routed, experts = some()
    with pytest.raises(ValueError, match=r"down has shape \(3, 4, 6\)"):
        expert_mlp(x, routed, replace(experts, down=experts.down.transpose(1, 2).contiguous()))
    with pytest.raises(ValueError, match=r"gate_up is torch\.float64"):
        expert_mlp(x, routed, replace(experts, gate_up=experts.gate_up.double()))
    with pytest.raises(ValueError, match=r"ids is torch\.int64"):
        expert_mlp(x, routed._replace(ids=routed.ids.long()), experts)
    with pytest.raises(ValueError, match="down_bias has shape"):
        expert_mlp(x, routed, replace(experts, down_bias=torch.zeros(3, 4)))
    codes = torch.zeros((8, 64), dtype=torch.uint8)
    words = pack(codes, Kind.INT4)
    packed = PackedWeight(torch.stack([words] * 2), torch.ones(2, 1, 8), None, Kind.INT4, 64)
    with pytest.raises(ValueError, match=r"gate_up has shape \(2, 8, 64\); expected \(2, 8, 6\)"):
        expert_mlp(x, routed, replace(experts, gate_up=packed))


QWEN3 = Problem(1, 8, 128, 2048, 768, bits=16, packed=False)
MIXTRAL = Problem(1, 2, 8, 4096, 14336, bits=16, packed=False)
GPT_OSS = Problem(1, 4, 32, 2880, 2880, bits=16, packed=True)


@pytest.mark.parametrize(
    "problem", [QWEN3, MIXTRAL, GPT_OSS, replace(QWEN3, bits=32), replace(QWEN3, high=256)]
)
@pytest.mark.parametrize("shared", [99 << 10, 227 << 10])
def test_plans_depend_on_buckets_and_fit(problem: Problem, shared: int) -> None:
    found = set()
    for most in (1, 2, 4, 8, 32, 128, 512, 2048, 16384):
        chosen = plan(replace(problem, tokens=most), shared)
        assert chosen == plan(replace(problem, tokens=most // 2 + 1), shared)
        if isinstance(chosen, Vectors):
            assert most <= 2 and not problem.packed
            assert 2 * chosen.gate_up.tile * chosen.gate_up.depth <= 32 * 4 * 32
            continue
        found.add(chosen.rows)
        for sides, one in ((2, chosen.gate_up), (1, chosen.down)):
            # The first stage's tiles are read while others are in flight.
            turn = (sides * one.tile + chosen.rows) * one.depth * problem.bits // 8
            assert turn * one.stages <= shared or one.stages == 2
            sums = sides * one.tile * chosen.rows / (32 * one.warps)
            assert sums <= 128  # registers of a thread
    assert len(found) >= 2


def test_high_tiles_of_codes_round_summands() -> None:
    """Their kernel writes rows of x's dtype, of however few tokens they are."""
    plans = [plan(replace(GPT_OSS, tokens=n, high=256), 227 << 10) for n in (100, 200, 2000)]
    assert [(one.rows, one.exact) for one in plans if isinstance(one, Grouped)] == [
        (32, True),
        (256, False),
        (256, False),
    ]


@pytest.mark.parametrize(("choices", "experts", "rows"), [(1, 8, 16), (7, 3, 2), (40, 6, 4)])
def test_tiles_hold_every_routing(choices: int, experts: int, rows: int) -> None:
    """The bound is reached where as many experts as may be begin a tile with one choice."""
    most = most_tiles(choices, experts, rows)
    active = min(choices, experts)
    counts = [1] * active
    counts[0] += choices - active
    assert sum(-(-count // rows) for count in counts) <= most
    # One expert more than full tiles need: each of the others has one choice.
    worst = [1 + rows * ((choices - active) // rows), *[1] * (active - 1)]
    assert sum(-(-count // rows) for count in worst) == most


def routed_at_random(tokens: int, top_k: int, experts: int) -> Routed:
    ids = torch.rand(tokens, experts, device="cuda").topk(top_k).indices.int()
    return Routed(ids, torch.rand(tokens, top_k, device="cuda"))


KINDS = [None, Kind.FP4, Kind.FP8, Kind.INT4]


def experts_on_device(count: int, hidden: int, inner: int, kind: Kind | None = None) -> Experts:
    """With random matrices in bfloat16, or with random codes."""

    def drawn(*shape: int) -> Matrices:
        if kind is None:
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5
        codes = torch.randint(min(0x70, 1 << kind.bits), shape, device="cuda").to(torch.uint8)
        scales = torch.rand(count, shape[2] // 64, shape[1], device="cuda") / 64
        if kind is Kind.FP8:  # a scale for 128 inputs
            scales = scales[:, : shape[2] // 128].contiguous() / 64
        words = torch.stack([pack(matrix, kind) for matrix in codes])
        return PackedWeight(words, scales.bfloat16(), None, kind, shape[2])

    return Experts(drawn(count, 2 * inner, hidden), drawn(count, hidden, inner))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 3, 40, 600])
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_serves_every_routing(tokens: int, kind: Kind | None) -> None:
    """Nothing of a launch depends on which experts are chosen, and nothing waits for the device."""
    experts = experts_on_device(40, 256, 128, kind)
    x = torch.randn(tokens, 256, device="cuda", dtype=torch.bfloat16)
    logits = torch.randn(tokens, 40, device="cuda")
    routing = Routing(4, renormalise=True)

    def run() -> Tensor:
        return expert_mlp(x, route_experts(logits, None, routing), experts)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for skewed in (False, True, False):
        logits.normal_()
        logits[:, 7] += 20 * skewed
        graph.replay()
        assert torch.equal(out, run())
        with use("reference"):
            expected = run()
        error = (out - expected).float().norm() / expected.float().norm()
        float8 = kind is Kind.FP8 and tokens == 600
        assert error < (0.06 if float8 else 0.01)


def in_blocks_of_float8(x: Tensor) -> Tensor:
    """x as e4m3 numbers with a scale per 128 inputs."""
    blocks = x.float().unflatten(-1, (-1, 128))
    scale = blocks.abs().amax(-1, keepdim=True) / 448
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


@pytest.mark.gpu
def test_many_rows_are_multiplied_as_float8() -> None:
    """Equal to products of rounded rows, closer than to products of x itself."""
    experts = experts_on_device(6, 512, 384, Kind.FP8)
    assert isinstance(experts.gate_up, PackedWeight) and isinstance(experts.down, PackedWeight)
    x = torch.randn(900, 512, device="cuda", dtype=torch.bfloat16)
    ids, weights = routed_at_random(900, 2, 6)
    expected = torch.zeros(900, 512, device="cuda")
    for expert in range(6):
        tokens, choices = (ids == expert).nonzero(as_tuple=True)
        both = (
            in_blocks_of_float8(x[tokens])
            @ experts.gate_up.of_expert(expert).matrix(torch.float32).t()
        )
        gate, up = both.chunk(2, -1)
        inner = in_blocks_of_float8((torch.nn.functional.silu(gate) * up).bfloat16())
        rows = inner @ experts.down.of_expert(expert).matrix(torch.float32).t()
        expected.index_add_(0, tokens, rows * weights[tokens, choices][:, None])
    out = expert_mlp(x, Routed(ids, weights), experts)
    error = (out.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    # Numbers in the middle of two codes may be rounded otherwise: their products differ.
    assert float(error.mean()) < 0.008 and float(error.max()) < 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [2, 8, 64, 512])
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_does_not_depend_on_the_others_of_its_bucket(
    tokens: int, kind: Kind | None
) -> None:
    experts = experts_on_device(24, 384, 128, kind)
    x = torch.randn(tokens, 384, device="cuda", dtype=torch.bfloat16)
    ids, weights = routed_at_random(tokens, 3, 24)
    whole = expert_mlp(x, Routed(ids, weights), experts)
    fewer = tokens // 2 + 1
    part = Routed(ids[-fewer:].contiguous(), weights[-fewer:].contiguous())
    assert torch.equal(expert_mlp(x[-fewer:], part, experts), whole[-fewer:])
