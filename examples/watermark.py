"""What a watermark's settings give: how surely it is found, and what it costs the text.

    python examples/watermark.py                              # brook, 96 stories of 200 tokens each
    python examples/watermark.py --gamma 0.1 --delta 6 8 10
    python examples/watermark.py --unmarked 1024 --delta 2    # false positives, little else

Stories at temperature 1, going on behind the model's end. The cost is the mean log-probability of
the tokens by the model without the mark; that of stories without one, negated, is the entropy.
"""

from __future__ import annotations

import argparse
import sys
from statistics import mean, median

from penstock import LLM, SamplingParams
from penstock.request import Completion
from penstock.watermark import GAMMA, detect

BEGINNING = "Once upon a time"
TOGETHER = 32  # answers to one prompt
LEVELS = (0.05, 0.01, 0.001)


def stories(
    args: argparse.Namespace, count: int, mark: tuple[float, float] | None
) -> list[Completion]:
    """`count` stories, rounded up to whole groups, with these gamma and delta, or none."""
    gamma, delta = mark or (GAMMA, 1.0)
    found: list[Completion] = []
    with LLM(args.model, progress=False, watermark_gamma=gamma, watermark_delta=delta) as llm:
        for seed in range(-(-count // TOGETHER)):
            params = SamplingParams(
                max_tokens=args.tokens,
                ignore_eos=True,
                seed=seed,
                n=TOGETHER,
                watermark=mark is not None,
            )
            found += llm.generate(BEGINNING, params)
    return found


def likelihood(found: list[Completion]) -> float:
    """Mean log-probability of a token, in nats."""
    return mean(mean(story.logprobs) for story in found)


def line(name: str, found: list[Completion], gamma: float) -> str:
    """A row of the table."""
    scores = [detect(story.token_ids, gamma) for story in found]
    lost = mean(likelihood([story]) for story in found)
    cells = [name, f"{median(score.z for score in scores):.2f}"]
    cells += [f"{mean(score.green / score.pairs for score in scores):.2f}"]
    cells += [f"{mean(score.pairs for score in scores):.0f}"]
    cells += [f"{100 * mean(score.p < 1e-4 for score in scores):.0f} %", f"{lost:.2f}"]
    return "| " + " | ".join(cells) + " |"


def false_positives(found: list[Completion], gammas: list[float]) -> None:
    """Prints how many texts without a mark have p-values below each level: with the key that
    servers have by default, and with a key of its own for each text."""
    print("\n| gamma | keys | " + " | ".join(f"p < {level}" for level in LEVELS) + " |")
    print("|" + "---|" * (2 + len(LEVELS)))
    for gamma in gammas:
        same = [detect(story.token_ids, gamma).p for story in found]
        own = [detect(story.token_ids, gamma, key).p for key, story in enumerate(found)]
        for keys, ps in (("the default", same), ("one each", own)):
            shares = [f"{100 * mean(p < level for p in ps):.2f} %" for level in LEVELS]
            print(f"| {gamma:g} | {keys} | " + " | ".join(shares) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--model", help="directory or hub id [default: brook]")
    option("--gamma", type=float, nargs="+", default=[0.5, 0.25, 0.1])
    option("--delta", type=float, nargs="*", default=[2.0, 4.0, 6.0, 8.0, 10.0])
    option("--stories", type=int, default=96, help="marked ones of each row")
    option("--unmarked", type=int, default=96, help="stories without a mark")
    option("--tokens", type=int, default=200, help="of a story")
    args = parser.parse_args()
    plain = stories(args, args.unmarked, None)
    print(f"{len(plain)} stories without a mark: entropy {-likelihood(plain):.2f} nats a token\n")
    print("| gamma, delta | median z | green | pairs | p < 0.0001 | mean log-probability |")
    print("|" + "---|" * 6)
    for gamma in args.gamma:
        print(line(f"{gamma:g}, none", plain, gamma))
        for delta in args.delta:
            marked = stories(args, args.stories, (gamma, delta))
            print(line(f"{gamma:g}, {delta:g}", marked, gamma))
            sys.stdout.flush()
    false_positives(plain, args.gamma)


if __name__ == "__main__":
    main()
