"""Log-probabilities are those of transformers, however a sequence is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import VOCAB, checkpoint_maker, generate, prompt, reference
from driver import Driver, Running, greedy, running
from local import LocalWorker
from penstock.rpc import shard_pb2 as pb
from penstock.worker.protocol.sampling_params import WHOLE_VOCABULARY
from penstock.worker.run import runner

TOP = 5
# Of sums in float32, and of what a reply holds: log-probabilities there are float32.
TOLERANCE = {"float64": 4e-6, "float32": 2e-4}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama31")


@dataclass
class SequenceLogprobs:
    """What the replies told of one sequence."""

    tops: list[dict[int, float]] = field(default_factory=list)  # of each generated token
    prompt: dict[int, tuple[float, int]] = field(default_factory=dict)  # position -> own, rank
    prompt_tops: dict[int, dict[int, float]] = field(default_factory=dict)


class Listener(Driver):
    """A driver that keeps the logprobs of replies."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.by_request: dict[int, SequenceLogprobs] = {}
        self.parts = 0

    def enter(self, sequence: Running) -> None:
        super().enter(sequence)
        self.by_request.setdefault(sequence.request, SequenceLogprobs())

    def step(self, sequences: Any, chunk: int = 512) -> pb.StepReply:
        reply = super().step(sequences, chunk)
        ends, numbers = 0, {s.slot: s.request for s in sequences}
        for slot, count in zip(reply.slots, reply.top_counts, strict=False):
            ids, logprobs = reply.top_token_ids[ends:], reply.top_logprobs[ends:]
            pairs = zip(ids[:count], logprobs[:count], strict=True)
            self.by_request[numbers[slot]].tops.append(dict(pairs))
            ends += count
        for part in reply.prompt_logprobs:
            self.parts += 1
            result = self.by_request[part.request_id]
            for at, (logprob, rank) in enumerate(zip(part.logprobs, part.ranks, strict=True)):
                position, tops = part.start + at, slice(at * part.top, (at + 1) * part.top)
                ids, logprobs = part.top_token_ids[tops], part.top_logprobs[tops]
                result.prompt[position] = logprob, rank
                result.prompt_tops[position] = dict(zip(ids, logprobs, strict=True))
        return reply


def asking(ids: list[int], wanted: int, top: int = TOP, of_prompt: int | None = 2) -> Running:
    return greedy(ids, wanted, top_logprobs=top, prompt_logprobs=of_prompt)


def exact(path: Path, ids: list[int]) -> torch.Tensor:
    """log_softmax of the logits after each of these tokens, by transformers."""
    model = reference(path, torch.float64)
    model.set_attn_implementation("sdpa")  # the plainest takes its softmax in float32
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = partial(normalized, module)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0]
    assert logits.dtype == torch.float64
    return logits.log_softmax(-1)


def normalized(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """LlamaRMSNorm in the dtype of its input: transformers' is in float32 always."""
    mean = hidden.square().mean(-1, keepdim=True)
    return module.weight * hidden * torch.rsqrt(mean + module.variance_epsilon)


def check(
    result: SequenceLogprobs,
    sequence: Running,
    rows: torch.Tensor,
    of_prompt: int,
    dtype: str = "float64",
) -> None:
    """Everything told is what `rows` say, and nothing is missing."""
    tolerance = TOLERANCE[dtype]
    prompt_ids = sequence.prompt
    assert sorted(result.prompt) == list(range(1, len(prompt_ids)))
    for position, (logprob, rank) in result.prompt.items():
        row, own = rows[position - 1], prompt_ids[position]
        assert logprob == pytest.approx(float(row[own]), abs=tolerance)
        assert rank == 1 + int((row > row[own]).sum())
        check_top(result.prompt_tops[position], row, of_prompt, tolerance)
    check_tokens(result, sequence, rows, tolerance)


def check_tokens(
    result: SequenceLogprobs, sequence: Running, rows: torch.Tensor, tolerance: float
) -> None:
    """The same of what was generated."""
    prompt_ids = sequence.prompt
    assert len(result.tops) == len(sequence.tokens)
    for at, (top, token) in enumerate(zip(result.tops, sequence.tokens, strict=True)):
        check_top(top, rows[len(prompt_ids) - 1 + at], TOP, tolerance)
        assert next(iter(top)) == token, "a greedy token is the likeliest"
        assert top[token] == pytest.approx(sequence.logprobs[at], abs=1e-5)


def check_top(top: dict[int, float], row: torch.Tensor, count: int, tolerance: float) -> None:
    best = row.topk(count)
    assert list(top) == best.indices.tolist()
    assert list(top.values()) == pytest.approx(best.values.tolist(), abs=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("chunk", [512, 7, 1])
def test_logprobs_are_exact_with_and_without_chunked_prefill(
    path: Path, dtype: str, chunk: int
) -> None:
    worker = LocalWorker()
    driver = Listener([worker], worker.load(path, dtype=dtype))
    sequence = asking(prompt(150), 6)
    driver.enter(sequence)
    driver.finish([sequence], chunk)
    driver.stream.close()
    rows = exact(path, sequence.prompt + sequence.tokens)
    check(driver.by_request[0], sequence, rows, 2, dtype)
    assert driver.parts == -(-149 // chunk)


def test_logprobs_go_only_to_sequences_that_request_them(path: Path) -> None:
    """Different wishes in one batch; who asks nothing gets the same tokens and nothing else."""
    worker = LocalWorker()
    driver = Listener([worker], worker.load(path, dtype="float64"))
    wishes = [(0, None), (5, None), (0, 0), (5, 3), (0, None)]
    sequences = [asking(prompt(20 + n, n), 4, *wish) for n, wish in enumerate(wishes)]
    for number, sequence in enumerate(sequences):
        sequence.request = number
        driver.enter(sequence)
    driver.finish(sequences, 9)
    driver.stream.close()
    for number, (top, of_prompt) in enumerate(wishes):
        result, sequence = driver.by_request[number], sequences[number]
        assert sequence.tokens == generate(reference(path, torch.float64), sequence.prompt, 4)
        assert [len(each) for each in result.tops if each] == ([5] * 4 if top else [])
        expected = set() if of_prompt is None else set(range(1, len(sequence.prompt)))
        assert set(result.prompt) == expected
        assert all(len(each) == of_prompt for each in result.prompt_tops.values())


def test_logprobs_are_exact_after_preemption(path: Path) -> None:
    """Preempted in its prompt, then while it generates; its slot is somebody else's meanwhile."""
    worker = LocalWorker()
    driver = Listener([worker], worker.load(path, dtype="float64"))
    sequence, other = asking(prompt(60), 8), greedy(prompt(30, 3), 3)
    other.request = 1
    driver.enter(sequence)
    driver.step([sequence], 25)
    for steps in (2, 4):
        driver.leave(sequence)
        driver.enter(other)
        driver.step([other])
        assert not any(driver.by_request[1].tops) and not driver.by_request[1].prompt
        driver.enter(sequence)
        for _ in range(steps):
            driver.step([sequence, other], 40)
    driver.finish([sequence, other])
    driver.stream.close()
    rows = exact(path, sequence.prompt + sequence.tokens)
    check(driver.by_request[0], sequence, rows, 2)


@pytest.mark.parametrize("size", [1, 2])
def test_logprobs_are_exact_after_a_prefix_hit(
    path: Path, groups: Callable[[int], Any], size: int
) -> None:
    """The second finds its prompt in the first's blocks, is preempted and finds it again."""
    driver = Listener(*groups(size))
    first = asking(prompt(70), 6)
    second = asking(prompt(70), 6, of_prompt=None)
    second.request = 1
    driver.enter(first)
    driver.step([first], 33)
    for _ in range(3):
        driver.step([first], 33)
    driver.enter_after(second, first)
    assert second.computed > 0
    driver.step([first, second], 5)
    driver.step([first, second], 5)
    # Its blocks are the first's as well, so they are not given back.
    second.blocks = []
    driver.leave(second)
    driver.step([first], 5)
    driver.enter_after(second, first)
    while not second.done:
        driver.step([first, second], 5)
    driver.stream.close()
    assert second.tokens == first.tokens
    rows = exact(path, first.prompt + first.tokens)
    check(driver.by_request[0], first, rows, 2)
    check_tokens(driver.by_request[1], second, rows, TOLERANCE["float64"])


def test_two_ranks_return_the_same_logprobs(path: Path, groups: Callable[[int], Any]) -> None:
    result = []
    for size in (1, 2):
        workers, loaded = groups(size)
        driver = Listener(workers, loaded)
        sequence = asking(prompt(90), 5)
        driver.enter(sequence)
        driver.finish([sequence], 40)
        driver.stream.close()
        rows = exact(path, sequence.prompt + sequence.tokens)
        check(driver.by_request[0], sequence, rows, 2)
        result.append(driver.by_request[0])
    assert result[0].prompt.keys() == result[1].prompt.keys()


@pytest.fixture
def groups(path: Path) -> Iterator[Callable[[int], Any]]:
    opened = []

    def open_group(size: int) -> Any:
        group = running(path, size, dtype="float64")
        opened.append(group)
        return next(group)

    yield open_group
    for group in opened:
        next(group, None)


def test_top_logprobs_are_limited_to_20_and_the_vocabulary(path: Path) -> None:
    worker = LocalWorker()
    worker.load(path)
    assert VOCAB > 20
    for wish in ({"top_logprobs": 21}, {"prompt_logprobs": 21}):
        request = pb.PrepareRequest(sampling=pb.Sampling(top_p=1, **wish))
        reply = worker.stub.Prepare(request)
        assert reply.error.kind == pb.RequestError.KIND_INVALID
        assert "21" in reply.error.message and "20" in reply.error.message


def test_requested_token_ids_follow_the_top_logprobs(path: Path) -> None:
    """Alone, beside alternatives, and beside sequences that name none."""
    worker = LocalWorker()
    driver = Listener([worker], worker.load(path, dtype="float64"))
    named = [7, 0, VOCAB - 1, *range(100, 130)]
    alone = greedy(prompt(9), 4, logprob_token_ids=named)
    both = greedy(prompt(14), 4, logprob_token_ids=named[:3], top_logprobs=TOP)
    likely = greedy(prompt(11), 4, top_logprobs=2)
    silent = greedy(prompt(5), 4)
    sequences = [silent, alone, likely, both]
    for request, sequence in enumerate(sequences):
        sequence.request = request
        driver.enter(sequence)
    driver.finish(sequences)
    tolerance = TOLERANCE["float64"]
    assert driver.by_request[silent.request].tops == [{}] * 4
    for sequence, ids, top in ((alone, named, 0), (both, named[:3], TOP), (likely, [], 2)):
        rows = exact(path, sequence.prompt + sequence.tokens)
        tops = driver.by_request[sequence.request].tops
        assert len(tops) == 4
        for at, result in enumerate(tops):
            row = rows[len(sequence.prompt) - 1 + at]
            best = row.topk(top).indices.tolist()
            assert list(result) == best + [token for token in ids if token not in best]
            for token, logprob in result.items():
                assert logprob == pytest.approx(float(row[token]), abs=tolerance)
    driver.stream.close()


def test_requested_top_token_is_returned_once(path: Path) -> None:
    worker = LocalWorker()
    driver = Listener([worker], worker.load(path))
    first = greedy(prompt(9), 1)
    driver.enter(first)
    driver.finish([first])
    again = greedy(prompt(9), 1, top_logprobs=2, logprob_token_ids=[first.tokens[0], 5])
    again.request = 1
    driver.enter(again)
    driver.finish([again])
    (result,) = driver.by_request[again.request].tops
    assert len(result) == (2 if 5 in list(result)[:2] else 3)
    assert next(iter(result)) == first.tokens[0]
    driver.stream.close()


def test_prompt_logprobs_of_the_whole_vocabulary(path: Path) -> None:
    """Beside a prompt with few top logprobs; in several chunks, sorted."""
    worker = LocalWorker()
    driver = Listener([worker], worker.load(path, dtype="float64"))
    whole = greedy(prompt(20), 1, prompt_logprobs=WHOLE_VOCABULARY)
    few = asking(prompt(30), 1)
    for request, sequence in enumerate((few, whole)):
        sequence.request = request
        driver.enter(sequence)
    driver.finish([few, whole], chunk=13)
    rows = exact(path, whole.prompt + whole.tokens)
    result = driver.by_request[whole.request]
    assert sorted(result.prompt_tops) == list(range(1, 20))
    for position, tops in result.prompt_tops.items():
        row = rows[position - 1]
        assert sorted(tops) == list(range(VOCAB))
        values = list(tops.values())
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx(row[list(tops)].tolist(), abs=TOLERANCE["float64"])
        logprob, rank = result.prompt[position]
        assert rank == 1 + int((row > row[whole.prompt[position]]).sum())
        assert logprob == pytest.approx(float(row[whole.prompt[position]]), abs=4e-6)
    check(driver.by_request[few.request], few, exact(path, few.prompt + few.tokens), 2)
    driver.stream.close()


def test_invalid_logprob_options_are_refused(path: Path) -> None:
    worker = LocalWorker()
    worker.load(path)
    for wish, word in (
        ({"logprob_token_ids": [VOCAB]}, str(VOCAB)),
        ({"logprob_token_ids": [1] * 129}, "128"),
        ({"top_logprobs": WHOLE_VOCABULARY}, "20"),
        ({"prompt_logprobs": WHOLE_VOCABULARY - 1}, "20"),
    ):
        request = pb.PrepareRequest(sampling=pb.Sampling(top_p=1, **wish))
        reply = worker.stub.Prepare(request)
        assert reply.error.kind == pb.RequestError.KIND_INVALID
        assert word in reply.error.message


def test_step_without_logprobs_runs_no_logprob_kernels(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for log-probabilities nor for what may be asked of logits."""
    worker, paid = LocalWorker(), list[str]()
    driver = Driver([worker], worker.load(path))

    def watch(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            paid.append(name)
            return function(*args, **options)

        monkeypatch.setattr(owner, name, watched)

    for name in ("LogprobCollector", "mask_tokens", "apply_mask"):
        watch(runner, name)
    for name in ("enter", "process_and_choose"):
        watch(worker.runner.slot_params, name)
    asked: list[tuple[dict[str, Any], set[str]]] = [
        ({"top_k": 9, "top_p": 0.9, "seed": 3}, set()),
        ({"min_p": 0.1}, set()),
        ({"banned_token_ids": [5]}, {"enter", "process_and_choose"}),
        ({"top_logprobs": 2}, {"LogprobCollector"}),
        ({"min_tokens": 9, "stop_token_ids": [7]}, {"mask_tokens"}),
    ]
    for fields, expected in asked:
        sequence = greedy(prompt(9), 6, temperature=0.8, **fields)
        driver.enter(sequence)
        driver.finish([sequence])
        assert (len(sequence.tokens), set(paid)) == (6, expected)
        paid.clear()
    driver.stream.close()


def test_nan_logits_fail_the_request(path: Path) -> None:
    worker = LocalWorker()
    driver = Listener([worker], worker.load(path, dtype="float64"))
    model = worker.runner.rank_model.model
    model.logits = lambda hidden: torch.full((len(hidden), VOCAB), torch.nan, dtype=hidden.dtype)
    sequence = asking(prompt(10), 2)
    driver.enter(sequence)
    driver.step([sequence], 5)
    assert "not finite" in (sequence.error or "")
    driver.stream.close()
