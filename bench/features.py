"""What each feature costs when all requests use it: tokens per second lost, against requests that
ask for nothing, just before and just after, on the same server.

    bench/h200.sh features 8b                       # starts a server of random weights
    bench/h200.sh features brook --output 128       # of the model that ships
    python bench/run.py features 8b --address 127.0.0.1:3000   # one that runs, with that shape

No two runs share a prompt. `nobody asks` is the plain case measured as if it were a feature: how
far it is from 0 is the noise. `native` is a sampled request on /generate_stream, which the
watermark needs; there, and where an answer has a grammar, answers may end before --output tokens.
"""

from __future__ import annotations

import argparse
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from h200 import Bench, checked, server_options
from harness.measure import Client, Figures, figures
from harness.shapes import SHAPES
from harness.workload import Shape, Source, random_jobs, with_fields
from serve import served_model

Fields = dict[str, Any]
COUNTER = r"^penstock_computed_tokens (\d+)"
SAMPLED: Fields = {"temperature": 1.0, "seed": 1}
PENALTIES: Fields = {
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.2,
}
WARPERS: Fields = {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95}
NATIVE: Fields = {"do_sample": True, "seed": 1}


def document(**age: Any) -> Fields:
    """A schema whose documents are as long as they may be: its last string seldom ends by itself.
    `age`: more keywords of a number."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", **age},
            "kind": {"enum": ["reader", "writer", "both"]},
            "likes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
        },
        "required": ["name", "age", "kind", "likes"],
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {
            "people": {"type": "array", "items": person, "minItems": 2, "maxItems": 4},
            "story": {"type": "string"},
        },
        "required": ["people", "story"],
        "additionalProperties": False,
    }
    return {"guided_json": schema, "ignore_eos": False, **SAMPLED}


@dataclass(frozen=True)
class Case:
    """What all requests of a run ask for, and how much of the tokens per second it may cost."""

    name: str
    fields: Fields = field(default_factory=dict)
    plain: Fields = field(default_factory=dict)  # what it is compared to
    api: str = "completions"
    most: float | None = None  # percent


CASES = [
    Case("nobody asks"),
    Case("temperature", SAMPLED),
    Case("all warpers", SAMPLED | WARPERS, most=3),
    Case("penalties", PENALTIES),
    Case("warpers and penalties", SAMPLED | WARPERS | PENALTIES),
    Case("logprobs top-5", {"logprobs": 5}, most=5),
    Case("JSON (outlines)", document(), most=6),
    Case("JSON (llguidance)", document(minimum=0, maximum=120), most=6),
    Case("n = 4", SAMPLED | {"n": 4}),
    Case("native", NATIVE, NATIVE, "generate"),
    Case("watermark", NATIVE | {"watermark": True}, NATIVE, "generate"),
]


@dataclass(frozen=True)
class Run:
    """What a run brought. work: tokens that ran to read prompts, for each answer."""

    rate: float
    tpot: float
    tokens: float  # of an answer, on average
    work: float


def computed(url: str) -> int:
    """Tokens that the server's model has run so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        found = re.search(COUNTER, reply.read().decode(), re.MULTILINE)
    if found is None:
        raise SystemExit("the server has no penstock_computed_tokens: is it Penstock?")
    return int(found[1])


class Measure:
    """Runs of one size on one server; no two of their prompts are alike."""

    def __init__(self, args: argparse.Namespace, client: Client, tokenizer: Path) -> None:
        self.args, self.client = args, client
        self.source = Source.of_tokenizer(str(tokenizer), args.seed)

    def __call__(self, fields: Fields, api: str) -> Run:
        """`--requests` answers, `--streams` at once. Raises RuntimeError if a request fails."""
        args, n = self.args, fields.get("n", 1)
        jobs = random_jobs(self.source, Shape(args.input, args.output), args.requests // n)
        client = replace(self.client, api=api)
        url = f"http://{client.address}"
        before = computed(url)
        records = checked(client.run(with_fields(jobs, fields), args.streams // n))
        row: Figures = figures(records)
        answers, tokens = len(records) * n, row["output_tokens"]
        # The last token of an answer is generated, but does not run.
        read = computed(url) - before - (tokens - answers)
        return Run(row["output_rate"], row["tpot_mean"] * n, tokens / answers, read / answers)

    def case(self, case: Case, before: Run) -> tuple[Figures, Run]:
        """The case between two plain runs, `before` and one more, which comes back too."""
        asked = self(case.fields, case.api)
        after = self(case.plain, case.api)
        rate, tpot = (before.rate + after.rate) / 2, (before.tpot + after.tpot) / 2
        return {
            "rate": asked.rate,
            "plain_before": before.rate,
            "plain_after": after.rate,
            "tokens": asked.tokens,
            "lost": 100 * (1 - asked.rate / rate),
            "slower": 100 * (asked.tpot / tpot - 1),
            "prompt_work_saved": 100 * (1 - asked.work * 2 / (before.work + after.work)),
        }, after


def measured(measure: Measure, cases: list[Case], rounds: int) -> dict[str, Figures]:
    """The figures of each case: means over the rounds, and the least and most that were lost."""
    found: dict[str, list[Figures]] = {case.name: [] for case in cases}
    for number in range(rounds):
        plain: tuple[Case, Run] | None = None
        for case in cases:
            if plain is None or (plain[0].plain, plain[0].api) != (case.plain, case.api):
                plain = case, measure(case.plain, case.api)
            row, after = measure.case(case, plain[1])
            plain = case, after
            found[case.name].append(row)
            print(f"round {number + 1}, {case.name}: {row['lost']:.1f} % lost", flush=True)
    rows: dict[str, Figures] = {}
    for name, each in found.items():
        rows[name] = {key: sum(row[key] for row in each) / rounds for key in each[0]}
        rows[name]["least_lost"] = min(row["lost"] for row in each)
        rows[name]["most_lost"] = max(row["lost"] for row in each)
    return rows


def table(cases: list[Case], found: dict[str, Figures]) -> str:
    """Markdown."""
    titles = ["all requests ask for", "out tok/s", "plain", "lost %", "of rounds", "TPOT +%"]
    lines = ["| " + " | ".join([*titles, "tokens", "at most"]) + " |", "|" + "---|" * 8]
    for case in cases:
        row = found[case.name]
        plain = (row["plain_before"] + row["plain_after"]) / 2
        spread = f"{row['least_lost']:.1f} to {row['most_lost']:.1f}"
        cells = [case.name, f"{row['rate']:,.0f}", f"{plain:,.0f}", f"**{row['lost']:.1f}**"]
        cells += [spread, f"{row['slower']:.1f}", f"{row['tokens']:.0f}"]
        verdict = "" if row["lost"] <= (case.most or 100) else ": missed"
        cells += ["" if case.most is None else f"{case.most:g}{verdict}"]
        lines.append("| " + " | ".join(cells) + " |")
    if "n = 4" in found:
        saved = found["n = 4"]["prompt_work_saved"]
        lines += ["", f"n = 4 saves {saved:.1f} % of the prompt work of as many answers."]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    names = [case.name for case in CASES]
    option("shape", choices=["brook", *SHAPES])
    option("--address", help="host and port of a server that runs, with the shape")
    option("--cases", nargs="+", choices=names, default=names, metavar="CASE")
    option("--rounds", type=int, default=3, help="runs of each case")
    option("--streams", type=int, default=32, help="answers at once")
    option("--requests", type=int, default=96, help="answers of a run")
    option("--input", type=int, default=128, help="tokens of a prompt")
    option("--output", type=int, default=256, help="tokens of an answer")
    option("--seed", type=int, default=0, help="of prompts")
    server_options(parser)
    return parser.parse_args()


@contextmanager
def server(args: argparse.Namespace, bench: Bench) -> Iterator[Client]:
    """A client of the server at --address, or of one that runs meanwhile."""
    if args.address:
        yield Client(args.load, args.address, served_model(args.address))
        return
    bench.prepare()
    with bench.server():
        yield bench.client


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    cases = [case for case in CASES if case.name in args.cases]
    bench = Bench(args)
    with server(args, bench) as client:
        measure = Measure(args, client, bench.folder / "tokenizer.json")
        for case in cases:  # warm-up: kernels that only some need, the grammars
            jobs = random_jobs(measure.source, Shape(args.input, args.output), 8)
            checked(replace(client, api=case.api).run(with_fields(jobs, case.fields)))
        found = measured(measure, cases, args.rounds)
    report = table(cases, found)
    (args.out / f"features-{args.shape}.json").write_text(json.dumps(found, indent=1))
    (args.out / f"features-{args.shape}.md").write_text(report + "\n")
    print(report)


if __name__ == "__main__":
    main()
