"""The watermark: found where it is, not where it is not, by a hash that two languages share."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from statistics import mean, median

import penstock
import pytest
import torch
from driver import Driver, greedy
from local import LocalWorker
from penstock import LLM, SamplingParams
from penstock.rpc import shard_pb2 as pb
from penstock.watermark import GAMMA, KEY, detect
from penstock_kernels.process_logits.reference import green
from tokenizers import Tokenizer

BROOK = Path(penstock.__file__).parent / "brook"
TOKENS, STORIES, PLAIN = 200, 40, 10


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BROOK / "tokenizer.json"))


def test_strong_watermark_makes_every_token_green(tokenizer: Tokenizer) -> None:
    """With prompts of several chunks: the first token's hash reads the prompt's last one."""
    worker = LocalWorker()
    driver = Driver([worker], worker.load(BROOK, max_slots=5))  # type: ignore[list-item]
    prompt = tokenizer.encode("Once upon a time").ids
    mark = pb.Watermark(gamma=GAMMA, delta=60.0, key=KEY)
    marked = [greedy(prompt, 40, temperature=1.0, seed=i, watermark=mark) for i in range(4)]
    plain = greedy(prompt, 40, temperature=1.0, seed=0)
    for sequence in [*marked, plain]:
        driver.enter(sequence)
    driver.finish([*marked, plain], chunk=3)
    driver.stream.close()
    for sequence in marked:
        score = detect(prompt[-1:] + sequence.tokens)
        assert score.green == score.pairs > 10
        assert score.p < 1e-3 and score.z > 3
    assert detect(plain.tokens).z < 3


def test_watermarked_stories_are_detected(tokenizer: Tokenizer) -> None:
    """brook's stories have 0.3 nats of entropy a token, so the mark must be strong: see
    docs/watermark.md for what gamma and delta give, and what they cost."""
    worker = LocalWorker()
    settings = {"max_slots": STORIES + PLAIN, "max_step_tokens": 1024, "dtype": "bfloat16"}
    driver = Driver([worker], worker.load(BROOK, **settings))  # type: ignore[list-item]
    prompt = tokenizer.encode("Once upon a time").ids
    mark = pb.Watermark(gamma=0.1, delta=8.0, key=KEY)
    marked = [
        greedy(prompt, TOKENS, temperature=1.0, seed=i, watermark=mark) for i in range(STORIES)
    ]
    plain = [greedy(prompt, TOKENS, temperature=1.0, seed=i) for i in range(PLAIN)]
    for sequence in marked + plain:
        driver.enter(sequence)
    driver.finish(marked + plain)
    driver.stream.close()
    entropy = -mean(mean(sequence.logprobs) for sequence in plain)
    assert 0.2 < entropy < 0.45
    assert median(detect(sequence.tokens, 0.1).z for sequence in marked) > 4
    assert abs(median(detect(sequence.tokens, 0.1).z for sequence in plain)) < 1


@pytest.mark.parametrize("gamma", [0.5, 0.1])
def test_false_positives_are_as_rare_as_the_p_value_says(
    tokenizer: Tokenizer, gamma: float
) -> None:
    """On texts that people wrote: the manual that Python brings. The p-value is a probability over
    keys, so each text has its own; with one key, texts share the luck of the pairs they share."""
    ids = tokenizer.encode("\n".join(topics.values())).ids
    texts = [ids[start : start + 150] for start in range(0, 150_000, 150)]
    assert len(texts) == 1000 and len(texts[-1]) == 150
    found = [detect(text, gamma, key).p for key, text in enumerate(texts)]
    for level in (0.5, 0.05, 0.01):
        below, spread = sum(p < level for p in found), (1000 * level * (1 - level)) ** 0.5
        # The p-value of a count is at most exact, so fewer may lie below.
        assert 500 * level - 4 * spread < below < 1000 * level + 4 * spread


def test_detector_hash_equals_the_kernel_hash() -> None:
    ids = torch.randint(0, 1 << 17, (3000,), generator=torch.Generator().manual_seed(1))
    for gamma, key in ((0.25, 7), (0.5, KEY), (0.9, (1 << 63) + 5)):
        signed = key - (1 << 64) if key >> 63 else key
        keys, bounds = (torch.tensor([n]) for n in (signed, round(gamma * 2**32)))
        pairs = {(int(a), int(b)) for a, b in itertools.pairwise(ids)}
        greens = sum(
            int(green(keys, torch.tensor([a]), torch.tensor([b]), bounds)) for a, b in pairs
        )
        score = detect(ids.tolist(), gamma, key)
        assert (score.pairs, score.green) == (len(pairs), greens)


def test_gamma_outside_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma must be between 0 and 1, not 1"):
        detect([1, 2], gamma=1)


def test_engine_accepts_watermark_gamma_delta_and_key() -> None:
    """0.3 of the tokens, so much that only they are possible, by a key of one's own."""
    options = {"watermark_gamma": 0.3, "watermark_delta": 90, "watermark_key": 77}
    params = SamplingParams(max_tokens=40, seed=1, ignore_eos=True, watermark=True)
    with LLM(device="cpu", progress=False, **options) as llm:
        (story,) = llm.generate("Once upon a time", params)
    found = detect(story.token_ids, 0.3, 77)
    assert found.green == found.pairs and found.p < 1e-5
    with pytest.raises(ValueError, match=r"--watermark-gamma.*must be between 0 and 1"):
        LLM(device="cpu", progress=False, watermark_gamma=1)
    with pytest.raises(ValueError, match=r"--watermark-delta.*must be above 0 and at most 100"):
        LLM(device="cpu", progress=False, watermark_delta=0)


def test_the_command(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = tmp_path / "story.txt"
    text.write_text("Once upon a time there was a fox.", encoding="utf-8")
    command = [sys.executable, "-m", "penstock", "watermark-detect"]
    done = subprocess.run([*command, text], capture_output=True, text=True, check=True)
    assert '"z": ' in done.stdout and '"p": ' in done.stdout
    other = ["--watermark-gamma=0.1", "--watermark-key=5"]
    done = subprocess.run([*command, text, *other], capture_output=True, text=True, check=True)
    ids = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False).ids
    assert json.loads(done.stdout)["p"] == pytest.approx(detect(ids, 0.1, 5).p)
    lost = subprocess.run([*command, "nowhere"], capture_output=True, text=True, check=False)
    assert lost.returncode == 2 and "nowhere cannot be read" in lost.stderr
