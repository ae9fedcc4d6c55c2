"""What sequences ask of their logits: greedy tokens equal those of transformers' processors, in
float64, however the sequences are run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import VOCAB, checkpoint_maker, prompt, reference
from driver import Driver, Running, Worker, greedy, new_sequence, running
from penstock.rpc import shard_pb2 as pb
from penstock.worker.protocol.sampling_params import SamplerVariant, SamplingParams
from transformers import (
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

WANTED = 24
Asked = dict[str, Any]
Group = tuple[list[Worker], pb.Loaded]

# The prompts are random, so a token's place among all does not matter.
ASKED: list[Asked] = [
    {},
    {"repetition": 1.4},
    {"frequency": 0.9, "presence": -0.3},
    {"bias": {7: 8.0, 11: -100.0, 400: 3.5}},
    {"repetition": 0.8, "frequency": 1.5, "presence": 0.5, "bias": {300: 2.5}},
    {"banned": list(range(0, VOCAB, 3))},
    {"allowed": list(range(1, VOCAB, 5)), "banned": [6, 11], "presence": 2.0},
    # With such a bias the answer is made of these tokens, as far as it may.
    {"bias": {7: 30.0, 11: 29.5}, "bad_words": [[7, 7], [11, 11], [7, 11, 7, 11, 7], [5] * 16]},
    {"bias": {7: 30.0}, "bad_words": [[*[7] * n, 7] for n in (3, 8, 15)], "presence": 0.5},
]
PROMPTS = [prompt(18 + 5 * i, seed=90 + i) for i in range(len(ASKED))]
# The prompt's last tokens are the beginning of a word.
ASKED[-1]["bad_words"].append([*PROMPTS[-1][-3:], 7])


def sampling(asked: Asked) -> Asked:
    """The fields of a Sampling message."""
    fields: Asked = {}
    if penalties := {k: asked[k] for k in ("repetition", "frequency", "presence") if k in asked}:
        fields["penalties"] = pb.Penalties(**{"repetition": 1.0, **penalties})
    if bias := asked.get("bias"):
        fields["logit_bias"] = pb.LogitBias(token_ids=list(bias), values=list(bias.values()))
    if "allowed" in asked:
        fields["allowed"] = pb.TokenSet(token_ids=asked["allowed"])
    words = [pb.BadWord(token_ids=word) for word in asked.get("bad_words", [])]
    return {**fields, "banned_token_ids": asked.get("banned", []), "bad_words": words}


def processors(asked: Asked) -> LogitsProcessorList:
    """The same in transformers, as far as it has it."""
    made = LogitsProcessorList()
    if bias := asked.get("bias"):
        made.append(SequenceBiasLogitsProcessor([[[token], b] for token, b in bias.items()]))
    if "repetition" in asked:
        made.append(RepetitionPenaltyLogitsProcessor(asked["repetition"]))
    if banned := [[token] for token in asked.get("banned", [])] + asked.get("bad_words", []):
        made.append(NoBadWordsLogitsProcessor(banned))
    return made


@torch.inference_mode()
def generate(model: Any, ids: list[int], asked: Asked) -> tuple[list[int], list[float]]:
    """Greedy tokens and their log-probabilities by the model; penalties by OpenAI's definition."""
    made, tokens, logprobs = processors(asked), list(ids), []
    for _ in range(WANTED):
        row = torch.tensor([tokens])
        raw = model(row).logits[:, -1].double()
        scores = made(row, raw.clone())
        counts = torch.bincount(torch.tensor(tokens[len(ids) :]).long(), minlength=VOCAB)
        scores = scores - torch.tensor(asked.get("frequency", 0.0)).double() * counts
        scores = scores - torch.tensor(asked.get("presence", 0.0)).double() * (counts > 0)
        if "allowed" in asked:
            impossible = torch.ones(VOCAB, dtype=torch.bool)
            impossible[asked["allowed"]] = False
            scores[:, impossible] = -torch.inf
        tokens.append(int(scores.argmax()))
        logprobs.append(float(raw.log_softmax(-1)[0, tokens[-1]]))
    return tokens[len(ids) :], logprobs


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama31")


@pytest.fixture(scope="module")
def expected(path: Path) -> list[tuple[list[int], list[float]]]:
    model = reference(path, torch.float64)
    return [generate(model, ids, asked) for ids, asked in zip(PROMPTS, ASKED, strict=True)]


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def group(request: pytest.FixtureRequest, path: Path) -> Iterator[Group]:
    yield from running(path, request.param, dtype="float64")


@pytest.fixture
def driver(group: Group) -> Iterator[Driver]:
    workers, loaded = group
    driver = Driver(workers, loaded, workers[0].stub.Health(pb.HealthRequest()).epoch + 1)
    yield driver
    driver.stream.close()


def sequences() -> list[Running]:
    pairs = zip(PROMPTS, ASKED, strict=True)
    return [greedy(ids, WANTED, **sampling(asked)) for ids, asked in pairs]


Expected = list[tuple[list[int], list[float]]]


def test_sampling_options_change_the_tokens(expected: Expected, path: Path) -> None:
    """Otherwise the tests below would show nothing."""
    model = reference(path, torch.float64)
    for ids, asked, (tokens, _) in list(zip(PROMPTS, ASKED, expected, strict=True))[1:]:
        assert tokens != generate(model, ids, {})[0], asked


def test_alone(driver: Driver, expected: Expected) -> None:
    for sequence, (tokens, logprobs) in zip(sequences(), expected, strict=True):
        driver.enter(sequence)
        driver.finish([sequence])
        assert sequence.tokens == tokens
        assert sequence.logprobs == pytest.approx(logprobs, abs=1e-5)


@pytest.mark.parametrize("chunk", [512, 7])
def test_in_a_batch(driver: Driver, expected: Expected, chunk: int) -> None:
    batch = sequences()
    for sequence in batch:
        driver.enter(sequence)
    driver.finish(batch, chunk)
    assert [s.tokens for s in batch] == [tokens for tokens, _ in expected]


def test_after_preemption(driver: Driver, expected: Expected) -> None:
    """Counts come back with the ids; a slot's former rules do not stay."""
    batch = sequences()
    for sequence in batch:
        driver.enter(sequence)
    for _ in range(9):
        driver.step(batch)
    for sequence in batch:
        driver.leave(sequence)
    for sequence in batch[3:] + batch[:3]:
        driver.enter(sequence)
    driver.finish(batch)
    assert [s.tokens for s in batch] == [tokens for tokens, _ in expected]


def test_with_two_steps_in_flight(driver: Driver, expected: Expected) -> None:
    """The counts of step N + 1 hold the token of step N before anyone was told it."""
    sequence = sequences()[4]
    sequence.slot = 4
    blocks = [driver.free.pop() for _ in range(8)]
    entering = new_sequence(sequence, 0, blocks)
    driver.stream.send(new=[entering], run_slots=[4], run_tokens=[len(sequence.prompt)])
    tokens: list[int] = []
    for _ in range(WANTED - 1):
        driver.stream.send(run_slots=[4], run_tokens=[1])
        tokens += driver.stream.receive().token_ids
    tokens += driver.stream.receive().token_ids
    assert tokens == expected[4][0]


def test_of_a_fork(driver: Driver, expected: Expected) -> None:
    """It has its source's rules and counts; the fork of a plain sequence has none of its slot's."""
    plain, source = sequences()[0], sequences()[4]
    for sequence in (plain, source):
        driver.enter(sequence)
    for _ in range(5):
        driver.step([plain, source])
    forks = driver.fork(source, plain)
    driver.finish([plain, source, *forks])
    assert source.tokens == forks[0].tokens == expected[4][0]
    assert plain.tokens == forks[1].tokens == expected[0][0]


@pytest.mark.parametrize(("asked", "sampler_variant"), [
    ({"top_p": 0.5}, SamplerVariant.PLAIN),
    ({"min_p": 0.1}, SamplerVariant.FILTERED),
    ({"min_p": 0.1, "typical_p": 0.5}, SamplerVariant.FILTERED),
    ({"typical_p": 0.5, "presence": 0.1}, SamplerVariant.PROCESSED),
    ({"allowed": np.arange(3)}, SamplerVariant.PROCESSED),
    ({"min_p": 0.1, "bad_words": (np.arange(3),)}, SamplerVariant.PROCESSED),
])  # fmt: skip
def test_logits_processors_run_only_when_requested(
    asked: Asked, sampler_variant: SamplerVariant
) -> None:
    assert SamplingParams(**asked).sampler_variant == sampler_variant


def test_min_p_and_typical_p_are_unaffected_by_logits_processors_in_the_batch(
    driver: Driver,
) -> None:
    """Alone they choose from the logits as they are."""
    wishes: list[Asked] = [{"min_p": 0.02}, {"typical_p": 0.8}, {"min_p": 0.01, "typical_p": 0.9}]
    answers = []
    for beside in ([], sequences()[1:3]):
        drawn = [
            greedy(PROMPTS[i], WANTED, temperature=1.5, seed=i, **wish)
            for i, wish in enumerate(wishes)
        ]
        for sequence in [*drawn, *beside]:
            driver.enter(sequence)
        driver.finish([*drawn, *beside])
        answers.append([sequence.tokens for sequence in drawn])
    assert answers[0] == answers[1]


def test_min_p_and_typical_p_follow_their_sequence_and_forks(driver: Driver) -> None:
    """Not those of who has the slot next; a fork of equal seed draws what its source does."""

    def drawn(**wish: float) -> Running:
        sequence = greedy(PROMPTS[0], WANTED, temperature=1.5, seed=1, **wish)
        driver.enter(sequence)
        return sequence

    narrow, alone = drawn(min_p=0.4), drawn()
    driver.finish([narrow, alone])
    assert narrow.tokens != alone.tokens
    driver.slots.sort(key=lambda slot: slot == narrow.slot)  # the next that is taken
    plain, source = drawn(), drawn(min_p=0.4)
    assert plain.slot == narrow.slot
    driver.step([plain, source])
    (fork,) = driver.fork(source)
    driver.finish([plain, source, fork])
    assert plain.tokens == alone.tokens
    assert source.tokens == fork.tokens == narrow.tokens


def test_impossible_tokens_fail_their_sequence_alone(driver: Driver, expected: Expected) -> None:
    good = sequences()[1]
    nothing = greedy(PROMPTS[0], WANTED, **sampling({"allowed": [5], "banned": [5]}))
    beyond = greedy(PROMPTS[0], WANTED, **sampling({"bias": {VOCAB: 1.0}}))
    for sequence in (nothing, good, beyond):
        driver.enter(sequence)
    driver.finish([nothing, good, beyond])
    assert good.tokens == expected[1][0]
    assert nothing.error is not None and "not finite numbers" in nothing.error
    assert beyond.error is not None and f"token id {VOCAB} is outside" in beyond.error
