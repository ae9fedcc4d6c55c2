"""A benchmark's figures mean what others mean by them, and its inputs are what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from features import CASES, Measure, Run, measured, table
from harness.checkpoint import write_checkpoint
from harness.measure import figures, gaps, quantile
from harness.shapes import SHAPES
from harness.vocabulary import write_tokenizer
from harness.workload import (
    Shape,
    Source,
    arriving,
    conversations,
    prefix_jobs,
    random_jobs,
    with_fields,
)
from penstock.weights import Checkpoint
from penstock_kernels.case import Size
from penstock_kernels.case import cases as op_cases
from penstock_kernels.op import OPS
from penstock_kernels.packed_linear import Kind
from safetensors import safe_open
from tokenizers import Tokenizer
from weight_errors import NAMES as WEIGHT_OPS
from weight_errors import format_of, row_errors
from weight_errors import measured as measured_errors
from weight_errors import table as errors_table

from examples.brook import quality
from examples.brook.formats import FORMATS


def record(sent: float, arrivals: list[float], tokens: int, prompt: int = 10) -> dict[str, Any]:
    times = {"sent": sent, "arrivals": arrivals}
    return times | {"tokens": tokens, "prompt_tokens": prompt, "error": None}


def test_latency_figures_of_overlapping_requests() -> None:
    # The second answer brought two tokens in one event: TPOT counts tokens, ITL counts arrivals.
    row = figures([record(1.0, [1.1, 1.2, 1.4], 3), record(1.5, [2.0, 3.0], 3)])
    assert row["ttft_mean"] == pytest.approx((100 + 500) / 2)
    assert row["tpot_mean"] == pytest.approx((300 / 2 + 1000 / 2) / 2)
    assert row["itl_mean"] == pytest.approx((100 + 200 + 1000) / 3)
    assert row["e2el_p50"] == pytest.approx((400 + 1500) / 2)
    assert (row["seconds"], row["output_rate"]) == (2.0, 3.0)
    assert (row["input_rate"], row["total_rate"], row["request_rate"]) == (10.0, 13.0, 1.0)


def test_failed_requests_are_counted_and_left_out() -> None:
    failed = record(0.0, [], 0) | {"error": "503"}
    row = figures([failed, record(1.0, [1.5], 1)])
    assert (row["requests"], row["failed"], row["seconds"]) == (1, 1, 0.5)
    assert "tpot_mean" not in row and "itl_p99" not in row
    with pytest.raises(RuntimeError, match="503"):
        figures([failed])


def test_quantiles_and_gaps() -> None:
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([1, 2, 3], 0.99) == pytest.approx(2.98)
    found = gaps(record(0, [1.0, 1.5, 2.5, 3.0], 4), since=1.5, until=2.9)
    assert found == pytest.approx([1000])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("tokenizer")
    assert write_tokenizer(folder, 30_000) == 29_999
    return Source.of_tokenizer(str(folder / "tokenizer.json"))


def test_random_tokens_survive_detokenizing_and_tokenizing(source: Source, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 30_000)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = source.draw(5000)
    assert len(set(ids)) > 4000
    assert tokenizer.encode(tokenizer.decode(ids)).ids == ids


def test_workloads(source: Source) -> None:
    shape = Shape(20, 5, spread=0.5)
    jobs = random_jobs(source, shape, 50)
    assert len({job.turns[0].prompt for job in jobs}) == 50
    assert {job.turns[0].tokens for job in jobs} >= {3, 4, 5, 6, 7}
    shared = [str(job.turns[0].prompt) for job in prefix_jobs(source, shape, 4, 30, groups=2)]
    assert shared[0][:100] == shared[2][:100] != shared[1][:100] == shared[3][:100]
    assert [len(job.turns) for job in conversations(source, shape, 2, turns=3)] == [3, 3]
    with pytest.raises(ValueError, match="--tokenizer"):
        conversations(Source(range(9), None), shape, 1, turns=2)
    times = [job.at for job in arriving(jobs * 20, rate=10)]
    assert times == sorted(times) and times[0] == 0
    assert 80 < times[-1] < 120  # 1,000 arrivals, 10 a second


def test_written_checkpoint_has_the_tensors_of_a_llama(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    names = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}
    config: dict[str, Any] = {**names, "vocab_size": 1000, **sizes, **heads}
    size = write_checkpoint(tmp_path, config)
    with Checkpoint(tmp_path) as checkpoint:
        shapes = {name: checkpoint[name].shape for name in checkpoint}
        norm = checkpoint["model.layers.1.input_layernorm.weight"]
        read = bytearray(norm.row_bytes * 32)
        norm.read(0, memoryview(read))
    assert len(shapes) == 2 * 9 + 3
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (16, 32)
    assert shapes["lm_head.weight"] == (1000, 32)
    assert read == b"\x80\x3f" * 32  # one, in bfloat16
    stored = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert size < stored < size + 10_000


def test_written_checkpoint_of_a_quantized_shape_has_codes_and_equal_scales(tmp_path: Path) -> None:
    tiny = {"hidden_size": 128, "intermediate_size": 64, "moe_intermediate_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    counts = {"num_hidden_layers": 1, "num_experts": 2, "num_experts_per_tok": 1}
    config = SHAPES["qwen3-30b-a3b-fp8"] | {"vocab_size": 1000} | tiny | heads | counts
    write_checkpoint(tmp_path, config)
    layer = "model.layers.0."
    with safe_open(tmp_path / "model-00001-of-00001.safetensors", "pt") as file:
        codes = file.get_tensor(layer + "mlp.experts.1.down_proj.weight")
        scales = file.get_tensor(layer + "self_attn.q_proj.weight_scale_inv")
        gate = file.get_tensor(layer + "mlp.gate.weight")
    assert codes.dtype == torch.float8_e4m3fn and codes.shape == (128, 64)
    assert codes.float().isfinite().all() and codes.float().std() > 1
    assert scales.dtype == torch.float32 and scales.shape == (1, 1) and scales.unique().numel() == 1
    assert gate.dtype == torch.bfloat16 and gate.shape == (2, 128)


def test_fields_are_added_to_every_request() -> None:
    jobs = conversations(Source(range(9), str), Shape(2, 3), 2, turns=2)
    asked = with_fields(with_fields(jobs, {"n": 2, "seed": 1}), {"seed": 5})
    assert all(t["fields"] == {"n": 2, "seed": 5} for j in asked for t in j.line()["turns"])
    assert jobs[0].line()["turns"][0]["fields"] == {}


def test_feature_is_compared_with_the_adjacent_plain_runs() -> None:
    class Scripted(Measure):
        """100, 50, 150, 90, ... tokens per second: plain and asked in turn."""

        def __init__(self) -> None:
            self.rates = iter([100.0, 50.0, 150.0, 90.0, 50.0] * 2)

        def __call__(self, fields: dict[str, Any], api: str) -> Run:
            return Run(next(self.rates), tpot=1.0, tokens=3.0, work=1.0 if "n" in fields else 4.0)

    cases = [case for case in CASES if case.name in ("all warpers", "n = 4")]
    found = measured(Scripted(), cases, rounds=2)
    assert found["all warpers"]["lost"] == pytest.approx(100 * (1 - 50 / 125))
    assert found["n = 4"]["lost"] == pytest.approx(100 * (1 - 90 / 100))
    assert found["n = 4"]["prompt_work_saved"] == pytest.approx(75)
    assert "3: missed" in table(cases, found)


def test_errors_of_weights_are_relative_to_rows() -> None:
    exact = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])
    out = torch.tensor([[3.0, 4.5], [0.0, 0.0], [0.5, 2.0]]).half()
    assert row_errors(out, exact) == pytest.approx([0.1, 0.25])
    assert errors_table({("int4", "float16"): {"expert_mlp": [0.1, 0.25]}}).splitlines()[-1] == (
        "| int4 | float16 |  |  |  | 2.5e-01, 1.7e-01 |"
    )


@pytest.mark.parametrize("op", WEIGHT_OPS)
def test_errors_of_weights_are_those_of_the_dequantized_product(op: str) -> None:
    """The reference rounds to float16 at most, and nothing in float32."""
    quantized = [case for case in op_cases(OPS[op]) if case.size is Size.SMALL and format_of(case)]
    assert {format_of(case) for case in quantized} <= {kind.value for kind in Kind}
    for case in quantized:
        arguments = case.make(torch.device("cpu"))
        found = measured_errors(OPS[op], arguments)
        assert len(found) == len(arguments["x"])
        assert all((error == 0) == (arguments["x"].dtype == torch.float32) for error in found)
        assert all(error < case.tolerance for error in found)


def test_documents_of_like_length_are_scored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "TOKENS", 8)
    documents = [
        ([1, 2, 3, 4], [False, False, True, True]),
        ([5, 6], [False, True]),
        ([7, 8, 9, 10, 11], [False, True, False, False, True]),
    ]
    short, long = quality.Batch.of(documents)
    assert (short.members, long.members) == ([1, 0], [2])
    assert short.ids.tolist() == [[5, 6, 0, 0], [1, 2, 3, 4]]
    assert short.counted.tolist() == [[True, False, False], [False, True, True]]
    assert (short.labels.tolist(), long.labels.tolist()) == ([6, 3, 4], [8, 11])


def test_an_answer_is_right_if_all_of_its_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = quality.Judge.__new__(quality.Judge)
    documents = [([1, 2, 3], [False, True, True]), ([1, 4], [False, True]), ([1, 2], [False, True])]
    judge.kinds, judge.asked = ["echo", "echo", "facts"], quality.Batch.of(documents)
    best = torch.tensor([4, 2, 2, 9])  # of the shorter documents first; the last token is wrong
    monkeypatch.setattr(quality.Batch, "logits", lambda *_: torch.eye(10)[best])
    assert judge.accuracies(None) == {"echo": 0.5, "facts": 1.0}  # type: ignore[arg-type]


def test_formats_are_measured_once(tmp_path: Path) -> None:
    row = {"bits": 4.5, "perplexity": 1.5, "divergence": 2e-4, "accuracies": {"a": 0.5, "b": 1.0}}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"count": 24, "rows": {"nvfp4": row, "fp8": {**row, "bits": 8}}}))
    rows = quality.measured(["nvfp4"], 24, file)
    assert rows == {"nvfp4": row}
    assert (
        quality.table(rows).splitlines()[-1] == "| nvfp4 | 4.5 | 0.200 | 1.5000 | 75.0% | a 50% |"
    )
    with pytest.raises(ValueError, match="has results of --count 24, found 12"):
        quality.measured(["nvfp4"], 12, file)


@pytest.mark.parametrize(("name", "top"), [("mxfp8", 448), ("mxfp4", 6)])
def test_scales_of_microscaling_formats_are_powers_of_two(name: str, top: int) -> None:
    """Of OCP's rule: the largest number saturates where the scale is too small for it."""
    torch.manual_seed(0)
    matrix = torch.randn(8, 64) * torch.logspace(-3, 3, 8)[:, None]
    how = FORMATS[f"{name}, groups of 32"].how
    assert callable(how)
    before, after = (one.view(8, 2, 32) for one in (matrix, how(matrix)))
    exponent = {448: 8, 6: 2}[top]
    scales = (before.abs().amax(-1, keepdim=True).log2().floor() - exponent).exp2()
    codes = after / scales
    assert codes.abs().amax() == top
    values = {448: torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()}
    numbers = values.get(top, torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]))
    distances = (codes.abs()[..., None] - numbers).abs()
    assert (distances.amin(-1) == 0).all()
    nearest = ((before / scales).abs()[..., None] - numbers).abs().amin(-1)
    assert torch.allclose((after - before).abs(), nearest * scales, rtol=1e-4, atol=1e-7)
