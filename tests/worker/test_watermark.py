"""The watermark: found where it is, not where it is not, by a hash that two languages share."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import penstock
import pytest
import torch
from driver import Driver, greedy
from local import LocalWorker
from penstock.rpc import shard_pb2 as pb
from penstock.watermark import GAMMA, KEY, detect
from penstock_kernels.adjust.reference import green
from tokenizers import Tokenizer

BROOK = Path(penstock.__file__).parent / "brook"
TOKENS = 200


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BROOK / "tokenizer.json"))


def test_a_strong_mark_makes_every_token_green(tokenizer: Tokenizer) -> None:
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


def test_false_positives_are_as_rare_as_the_p_value_says() -> None:
    generator = torch.Generator().manual_seed(5)
    frequencies = 1 / torch.arange(1, 4097)
    texts = torch.multinomial(frequencies.expand(1000, -1), TOKENS, True, generator=generator)
    found = [detect(text.tolist()).p for text in texts]
    for level in (0.5, 0.05, 0.01):
        below, spread = sum(p < level for p in found), (1000 * level * (1 - level)) ** 0.5
        # The p-value of a count is at most exact, so fewer may lie below.
        assert 600 * level - 4 * spread < below < 1000 * level + 4 * spread


def test_the_hash_is_the_kernels() -> None:
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


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma must be between 0 and 1, not 1"):
        detect([1, 2], gamma=1)


def test_the_command(tmp_path: Path) -> None:
    text = tmp_path / "story.txt"
    text.write_text("Once upon a time there was a fox.", encoding="utf-8")
    command = [sys.executable, "-m", "penstock", "watermark-detect"]
    done = subprocess.run([*command, text], capture_output=True, text=True, check=True)
    assert '"z": ' in done.stdout and '"p": ' in done.stdout
    lost = subprocess.run([*command, "nowhere"], capture_output=True, text=True, check=False)
    assert lost.returncode == 2 and "nowhere cannot be read" in lost.stderr
