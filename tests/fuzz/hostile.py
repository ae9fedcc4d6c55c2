"""Bodies that `schemathesis` draws from docs/openapi.json, sent to a server; what its answers say.

A drawn body has values in most of its fields, so the first rule that it breaks hides all others.
Therefore some of its fields are sent once more, each alone in the route's example: whatever is
wrong then is wrong with that field, and the refusal must name it.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import random
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DESCRIPTION = Path(__file__).resolve().parents[2] / "docs/openapi.json"
PARTS = 4  # fields of a drawn body that are sent alone
DRAWN = 100  # bodies of one task
LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens")
KNOWN = 32  # characters by which a field's name is known; messages have excerpts of long ones
SHORT = 2  # tokens of an answer whose body does not bound it


@dataclass(frozen=True)
class Task:
    """Bodies for one route, good or bad ones."""

    path: str
    good: bool
    seed: int
    drawn: int


@dataclass
class Findings:
    """How many bodies had each status, by route, and the answers that should not be."""

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return sum(counter.total() for counter in self.statuses.values())

    def add(self, other: Findings) -> None:
        for path, counter in other.statuses.items():
            self.statuses.setdefault(path, Counter()).update(counter)
        self.wrong += other.wrong

    def __str__(self) -> str:
        total: Counter[int] = sum(self.statuses.values(), Counter())
        rows = [*sorted(self.statuses.items()), ("all", total)]
        lines = [f"{path} {dict(sorted(counter.items()))}" for path, counter in rows]
        return "\n".join([*lines, f"wrong: {len(self.wrong)}", *self.wrong[:50]])


def answer(line: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, str]:
    """Status and text of the answer."""
    line.request("POST", path, body, {"content-type": "application/json"})
    reply = line.getresponse()
    return reply.status, reply.read().decode()


def complaint(status: int, text: str, name: str | None) -> str | None:
    """What is wrong with an answer to a body in which at most the field `name` is wrong; None: any
    field may be; empty: the body has no fields."""
    if status >= 500:
        return "status"
    if status < 400:
        # What can be known beforehand must not be told after a 200.
        return "error in a stream" if 'data: {"error"' in text else None
    error = json.loads(text)["error"]
    if isinstance(error, str):
        error = {"message": error}
    message, param = error["message"], error.get("param")
    if not message:
        return "no words"
    if name is None:
        return None if "`" in message or param else "no field is named"
    if name[:KNOWN] not in message and not str(param).startswith(name):
        return f"`{name}` is not named"
    return None


def shortened(body: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """The body with a bound on its answer, where the example has one and the body has none."""
    limits = [name for name in LIMITS if name in example]
    inner = example.get("parameters")
    if limits and not any(body.get(name) for name in LIMITS):
        body = {**body, limits[0]: SHORT}
    if isinstance(inner, dict) and isinstance(body.get("parameters", {}), dict):
        body = {**body, "parameters": shortened(body.get("parameters", {}), inner)}
    return body


def parts(body: dict[str, Any], example: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field of `body` in the place that it has in the route's example."""
    for name, value in body.items():
        if name == "parameters" and isinstance(value, dict):
            for inner, part in parts(value, example.get("parameters", {})):
                yield inner, {**example, name: part}
        else:
            yield name, {**example, name: value}


class Sender:
    """Sends to one server, over one connection."""

    def __init__(self, url: str) -> None:
        import schemathesis

        self.url = url
        address = urllib.parse.urlsplit(url)
        self.line = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        description = json.loads(DESCRIPTION.read_text())
        self.examples = {
            path: methods["post"]["requestBody"]["content"]["application/json"]["example"]
            for path, methods in description["paths"].items()
            if "post" in methods
        }
        self.schema = schemathesis.openapi.from_path(DESCRIPTION)

    def send(self, task: Task) -> Findings:
        """All bodies of a task: those that are drawn, and parts of them."""
        from hypothesis import HealthCheck, Phase, given, seed, settings
        from schemathesis import GenerationMode

        mode = GenerationMode.POSITIVE if task.good else GenerationMode.NEGATIVE
        found, chosen = Findings({task.path: Counter()}), random.Random(task.seed)

        @seed(task.seed)
        @settings(
            max_examples=task.drawn,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=self.schema[task.path]["post"].as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            example = shortened(self.examples[task.path], self.examples[task.path])
            case.path_parameters = {name: "brook" for name in case.path_parameters or {}}
            if not isinstance(case.body, dict):
                reply = case.call(base_url=self.url)
                self.note(found, task.path, (reply.status_code, reply.text), case.body, "")
                return
            self.post(found, task.path, shortened(case.body, example))
            alone = list(parts(case.body, example))
            for name, body in chosen.sample(alone, min(PARTS, len(alone))):
                self.post(found, task.path, shortened(body, example), name)

        send()
        return found

    def post(self, found: Findings, path: str, body: Any, name: str | None = None) -> None:
        sent = json.dumps(body).encode()
        reply = answer(self.line, path.replace("{model}", "brook"), sent)
        self.note(found, path, reply, body, name)

    def note(
        self,
        found: Findings,
        path: str,
        reply: tuple[int, str],
        body: Any,
        name: str | None = None,
    ) -> None:
        found.statuses[path][reply[0]] += 1
        wrong = complaint(*reply, name)
        if wrong:
            shown = json.dumps(body, default=repr)
            found.wrong.append(f"{wrong}: {path} {shown:.600} -> {reply[0]} {reply[1]:.400}")


SENDER: Sender | None = None  # of this process


def begin(url: str) -> None:
    global SENDER
    SENDER = Sender(url)


def run(task: Task) -> Findings:
    assert SENDER is not None
    return SENDER.send(task)


def tasks(paths: list[str], bodies: int, seed: int) -> list[Task]:
    """Tasks that send about `bodies` bodies, in turns over all routes."""
    drawn = min(DRAWN, max(1, bodies // (2 * len(paths) * (PARTS + 1))))
    rounds = max(1, round(bodies / (2 * len(paths) * drawn * (PARTS + 1))))
    kinds = [(path, good) for path in paths for good in (True, False)]
    numbered = enumerate(kinds * rounds, seed << 20)
    return [Task(path, good, number, drawn) for number, (path, good) in numbered]


def send_all(url: str, bodies: int, clients: int, seed: int) -> Findings:
    """About `bodies` bodies, by several processes."""
    found = Findings()
    todo = tasks(list(Sender(url).examples), bodies, seed)
    with multiprocessing.get_context("spawn").Pool(clients, begin, (url,)) as pool:
        for done, more in enumerate(pool.imap_unordered(run, todo), 1):
            found.add(more)
            if done % 26 == 0:
                print(
                    f"{done}/{len(todo)}: {found.sent} bodies, {len(found.wrong)} wrong", flush=True
                )
    return found
