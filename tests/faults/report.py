"""What a run under faults showed."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from .compare import Verdict
from .schedule import LOSSES, Kind
from .storm import Injection, Outcome, Storm

SHOWN = 12  # broken and differing answers that are printed


@dataclass(frozen=True)
class Pause:
    """The longest time between two tokens of a stream around a fault."""

    kind: str
    seconds: float
    fault: int  # its number in the run


@dataclass
class Report:
    """Counts of a run on one server."""

    name: str
    seed: int
    seconds: float
    verdicts: dict[str, int]
    streams_hit: int  # streams that a fault met between two of their tokens
    tokens: int
    faults: dict[str, int]  # kind -> how many happened
    failures: list[str]  # faults that could not happen, streams that did not go on
    problems: list[str]  # broken and differing answers
    pauses: list[Pause]
    poisoned: list[str]  # what senders of poisoned requests saw
    orphans: int  # workers that outlived their launcher
    losses: int = 0  # of workers, as the server counts them
    leaks: dict[str, float] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether nothing was lost, changed or left behind."""
        wrong = (Verdict.BROKEN, Verdict.DIFFERENT)
        counts = [self.verdicts.get(verdict.value, 0) for verdict in wrong]
        return not (any(counts) or self.leaks or self.orphans or self.failures)

    def text(self) -> str:
        """The report for people."""
        counts = ", ".join(f"{n} {name}" for name, n in self.verdicts.items())
        faults = ", ".join(f"{n} {name}" for name, n in sorted(self.faults.items()))
        lines = [
            f"{self.name}, seed {self.seed}, {self.seconds:.0f} s",
            f"  requests: {counts}; {self.tokens} tokens compared",
            f"  faults: {faults}; {self.losses} losses of workers",
            f"  streams met by a fault: {self.streams_hit}",
            f"  left behind when idle: {self.leaks or 'nothing'}; orphans: {self.orphans}",
        ]
        lines += [f"  pauses, {kind}: {line}" for kind, line in self._pauses()]
        lines += [f"  poison, {note}" for note in self.poisoned[:SHOWN]]
        lines += [f"  FAILED: {failure}" for failure in self.failures[:SHOWN]]
        lines += [f"  PROBLEM: {problem}" for problem in self.problems[:SHOWN]]
        return "\n".join(lines)

    def _pauses(self) -> list[tuple[str, str]]:
        by_kind: dict[str, list[float]] = {}
        for pause in self.pauses:
            by_kind.setdefault(pause.kind, []).append(pause.seconds)
            if Kind(pause.kind) in LOSSES:
                by_kind.setdefault("all losses", []).append(pause.seconds)
        return [
            (
                kind,
                f"median {quantile(values, 0.5):.2f} s, p99 {quantile(values, 0.99):.2f} s, "
                f"longest {max(values):.2f} s ({len(values)} streams)",
            )
            for kind, values in sorted(by_kind.items())
        ]

    def write(self, path: Path) -> None:
        """Adds the report to a file of JSON lines."""
        with path.open("a") as file:
            file.write(json.dumps(asdict(self)) + "\n")


def summary(name: str, storm: Storm, seconds: float) -> Report:
    """The report of a run that has ended."""
    happened = [i for i in storm.injections if i.ended]
    wrong = [o for o in storm.outcomes if o.verdict in (Verdict.BROKEN, Verdict.DIFFERENT)]
    ended = [storm.ended] if storm.ended else []
    pauses = list(_pauses(storm.outcomes, storm.injections))
    return Report(
        name=name,
        seed=storm.seed,
        seconds=seconds,
        verdicts=dict(Counter(o.verdict.value for o in storm.outcomes)),
        streams_hit=len(pauses),
        tokens=sum(_tokens(outcome) for outcome in storm.outcomes),
        faults=dict(Counter(i.fault.kind.value for i in happened)),
        failures=[_failure(n, i) for n, i in enumerate(storm.injections) if i.failure] + ended,
        problems=[_problem(outcome, storm.injections) for outcome in wrong],
        pauses=pauses,
        poisoned=storm.injector.poisoned,
        orphans=len(storm.injector.orphans),
    )


def quantile(values: list[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _pauses(outcomes: list[Outcome], injections: list[Injection]) -> list[Pause]:
    found = []
    whole = [outcome for outcome in outcomes if outcome.answer.complete]
    for number, injection in enumerate(injections):
        # A pause that a fault begins ends before the next fault: the driver waits for that.
        later = injections[number + 1].began if number + 1 < len(injections) else math.inf
        for outcome in whole:
            gaps = [
                after - before
                for before, after in pairwise(outcome.answer.times)
                if injection.began < after <= later
            ]
            if gaps and outcome.answer.times[0] < injection.began:
                found.append(Pause(injection.fault.kind.value, max(gaps), number))
    return found


def _tokens(outcome: Outcome) -> int:
    if outcome.verdict is not Verdict.SAME:
        return 0
    return sum(len(choice.tokens) for choice in outcome.answer.choices.values())


def _failure(number: int, injection: Injection) -> str:
    return f"fault {number}, {injection.fault}: {injection.failure}"


def _problem(outcome: Outcome, injections: list[Injection]) -> str:
    met = [
        f"{number} ({injection.fault.kind.value})"
        for number, injection in enumerate(injections)
        if outcome.began <= injection.began <= outcome.ended
    ]
    seconds = outcome.ended - outcome.began
    kind, detail = outcome.request.kind, outcome.detail[:300]
    faults = ", ".join(met) or "none"
    return f"{outcome.verdict.value}, {kind}, after {seconds:.2f} s, faults {faults}: {detail}"
