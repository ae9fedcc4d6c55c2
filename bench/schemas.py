"""How many JSON schemas structured outputs accept, and whether the documents are valid.

    python bench/run.py schemas NAME=FOLDER ...

Each file of a folder (`.json`, or `.jsonl` with one a line) holds a schema, or an object whose
`schema` or `json_schema` is one. Each schema is compiled as for a request. Of each that is
accepted, documents are made by random walks over the masks, with budgets of tokens from the least
possible on, and `jsonschema` checks them. Per set: accepted; refused, with the reasons counted;
broken (accepted, but a walk did not come to an end); documents, and how many are invalid.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from penstock.faults import Fault
from penstock.grammar.cache import GrammarCache
from penstock.grammar.protocol import (
    EndConditions,
    GrammarKind,
    GrammarRejected,
    GrammarSpec,
    words,
)

BROOK = Path(__file__).parents[1] / "python" / "penstock" / "brook" / "tokenizer.json"
VOCAB = 4096
EOS = (2, 3)
CHECKER = Draft202012Validator.FORMAT_CHECKER
MOST_TOKENS = 4000  # of the shortest document of a schema


@dataclass
class Outcome:
    """Of one schema."""

    name: str
    refused: str = ""
    broken: list[str] = field(default_factory=list)
    documents: int = 0
    invalid: list[str] = field(default_factory=list)


def schemas(folder: Path) -> Iterator[tuple[str, Any]]:
    """All of a folder, by their names."""
    for path in sorted(folder.rglob("*.json*")):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for number, line in enumerate(lines):
            found = json.loads(line)
            for key in ("json_schema", "schema"):
                if isinstance(found, dict) and isinstance(found.get(key), dict | str):
                    found = found[key]
            found = json.loads(found) if isinstance(found, str) else found
            yield f"{path.name}:{number}", found


def walked(
    grammar_cache: GrammarCache, wanted: GrammarSpec, most: int, draw: random.Random
) -> tuple[bytes, bool]:
    """A document, and whether it came to an end. Raises Fault where the masks allow nothing."""
    vocabulary = grammar_cache.vocabulary()
    matcher = grammar_cache.matcher(wanted, EndConditions(EOS, most), ())
    out, row = b"", np.zeros(words(VOCAB), np.int32)
    closing_rate = draw.choice((0.02, 0.1, 0.5))  # how often what ends or opens is taken
    for _ in range(most):
        matcher.fill(row)
        able = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not len(able):
            return out, matcher.is_accepting
        token = int(draw.choice(able))
        if draw.random() < closing_rate:
            marked = [t for t in able if set(vocabulary.tokens[t]) & set(b'"{}[],')]
            token = int(draw.choice(marked or list(able)))
        if token in EOS:
            return out, True
        matcher.advance(token)
        out += vocabulary.tokens[token]
    return out, matcher.is_accepting


def tried(grammar_cache: GrammarCache, name: str, schema: Any, documents: int) -> Outcome:
    """One schema: compiled, walked and checked."""
    wanted = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), True)
    outcome = Outcome(name)
    try:
        grammar_cache.prepare(wanted, MOST_TOKENS)
    except GrammarRejected as error:
        outcome.refused = str(error)
        return outcome
    except Fault as error:
        outcome.broken.append(f"not compiled: {error}")
        return outcome
    draw, shortest = random.Random(name), grammar_cache._grammar(wanted).shortest
    validator = validator_for(schema, Draft202012Validator)(schema, format_checker=CHECKER)
    for _ in range(documents):
        most = shortest + draw.choice((0, 1, 5, 20, 60, 150, 400))
        try:
            text, whole = walked(grammar_cache, wanted, most, draw)
        except Fault as error:
            outcome.broken.append(str(error))
            break
        outcome.documents += 1
        judge(outcome, validator, text, whole)
    return outcome


def judge(outcome: Outcome, validator: Any, text: bytes, whole: bool) -> None:
    """Whether a text is a whole, valid document."""
    if not whole:
        outcome.broken.append(f"no end: {text[-120:]!r}")
        return
    try:
        error = next(iter(validator.iter_errors(json.loads(text))), None)
    except ValueError as problem:
        outcome.broken.append(f"no JSON: {problem} {text[-120:]!r}")
    except Exception as problem:  # what the validator cannot read
        outcome.broken.append(f"not checked: {type(problem).__name__} {str(problem)[:120]}")
    else:
        if error is not None:
            place = "/".join(map(str, error.absolute_schema_path))
            outcome.invalid.append(f"{place}: {error.message[:160]} in {text[:200]!r}")


def reason(text: str) -> str:
    """A refusal without what is of one schema alone."""
    return re.sub(r"\d+", "N", re.sub(r"\(in `[^`]*`\)|`#[^`]*`|\"[^\"]*\"|'[^']*'", "_", text))[
        :110
    ]


def report(name: str, outcomes: list[Outcome], verbose: bool) -> None:
    """One set's lines."""
    accepted = [each for each in outcomes if not each.refused]
    broken = [each for each in accepted if each.broken]
    invalid = [each for each in accepted if each.invalid]
    share = 100 * len(accepted) / max(1, len(outcomes))
    documents = sum(each.documents for each in accepted)
    print(
        f"{name}: {len(outcomes)} schemas, accepted {len(accepted)} ({share:.1f} %), broken "
        f"{len(broken)}, documents {documents}, invalid {sum(len(e.invalid) for e in invalid)} "
        f"(of {len(invalid)} schemas)"
    )
    for why, count in Counter(reason(e.refused) for e in outcomes if e.refused).most_common(25):
        print(f"  {count:5}  {why}")
    for each in broken + invalid if verbose else (broken + invalid)[:10]:
        print(f"  {each.name}: {(each.broken + each.invalid)[0]}")
    if verbose:
        for each in outcomes:
            if each.refused:
                print(f"  refused {each.name}: {each.refused[:200]}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--documents", type=int, default=6, help="of each schema")
    parser.add_argument("--most", type=int, default=1 << 30, help="schemas of each set, at random")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="every refusal and failure")
    args = parser.parse_args()
    grammar_cache = GrammarCache(BROOK, VOCAB)
    wrong = 0
    with ThreadPoolExecutor(args.threads) as pool:
        for each in args.sets:
            name, _, folder = each.rpartition("=")
            found = list(schemas(Path(folder)))
            found = random.Random(1).sample(found, min(args.most, len(found)))
            made = [pool.submit(tried, grammar_cache, n, s, args.documents) for n, s in found]
            outcomes = [future.result() for future in made]
            report(name or folder, outcomes, args.verbose)
            wrong += sum(bool(o.broken or o.invalid) for o in outcomes)
    grammar_cache.close()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
