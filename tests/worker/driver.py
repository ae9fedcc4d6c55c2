"""Real worker processes, and a small in-process stand-in for the router that drives them."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from forks import shared_launcher
from penstock.rpc import shard_pb2 as pb
from penstock.rpc import shard_pb2_grpc as rpc

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, Any] = {
    "protocol_version": 1,
    "device": "cpu",
    "dtype": "float32",
    "world_size": 1,
    "max_sequence_tokens": 256,
    "max_slots": 32,
    "max_step_tokens": 512,
    "memory_fraction": 0.9,
    "threads": 1,
}


# Where no worker listens yet, gRPC tries again after a second by default.
RETRIES = [(f"grpc.{name}_reconnect_backoff_ms", 20) for name in ("initial", "min", "max")]


class Worker:
    """A worker of the test process's fork server, and a client of it."""

    def __init__(self, rank: int = 0) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="penstock-worker-")
        socket = Path(self.directory.name) / "shard.sock"
        self._start(socket, rank)
        self.channel = grpc.insecure_channel(f"unix:{socket}", RETRIES)
        self.stub = rpc.ShardStub(self.channel)
        self.rank = rank
        self.stub.Health(pb.HealthRequest(), wait_for_ready=True, timeout=60)

    def _start(self, socket: Path, rank: int) -> None:
        self.forked = shared_launcher().fork(socket, rank)
        self.pid = self.forked.pid

    def _end(self) -> int:
        """Ends the lease; returns the exit status."""
        os.close(self.forked.lease)
        return os.waitstatus_to_exitcode(int(next(self.forked.report)))

    def load(self, model: Path | str, **settings: Any) -> pb.Loaded:
        """Loads and returns what the worker can do; raises grpc.RpcError."""
        wanted = {**SETTINGS, "model_path": str(model), "rank": self.rank, **settings}
        events = list(self.stub.Load(pb.LoadRequest(**wanted)))
        return events[-1].loaded

    def close(self) -> int:
        """Ends the lease; returns the exit status."""
        self.channel.close()
        status = self._end()
        self.directory.cleanup()
        return status


class OwnProcess(Worker):
    """A `python -m penstock.worker` process, and a client of it."""

    def _start(self, socket: Path, rank: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.worker", "--socket", str(socket), "--rank", str(rank)],
            stdin=subprocess.PIPE,
            cwd=ROOT / "python",
        )
        self.pid = self.process.pid

    def _end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=60)


@dataclass
class Running:
    """What the stand-in knows of one sequence."""

    prompt: list[int]
    wanted: int
    sampling: pb.Sampling
    slot: int = -1
    computed: int = 0
    tables: list[list[int]] = field(default_factory=lambda: [[]])  # blocks by KV group
    released: list[int] = field(default_factory=lambda: [0])  # of each table, behind its window
    # Of states: (KV group, tokens) -> block.
    checkpoints: dict[tuple[int, int], int] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    error: str | None = None
    grammar: pb.Grammar | None = None
    request: int = 0

    @property
    def blocks(self) -> list[int]:
        """Of the first KV group."""
        return self.tables[0]

    @blocks.setter
    def blocks(self, blocks: list[int]) -> None:
        self.tables[0] = blocks

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.tokens)

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.tokens) >= self.wanted


class Stream:
    """An open step stream to each worker of a group; steps are counted here."""

    def __init__(self, workers: Sequence[Worker], epoch: int = 1) -> None:
        self.epoch, self.step = epoch, 0
        self.queues: list[queue.Queue[pb.StepRequest | None]] = [queue.Queue() for _ in workers]
        for worker in workers:
            worker.stub.Reset(pb.ResetRequest(epoch=epoch))
        self.replies = [
            worker.stub.Step(iter(q.get, None))
            for worker, q in zip(workers, self.queues, strict=True)
        ]

    def send(self, **parts: Any) -> None:
        request = pb.StepRequest(epoch=self.epoch, step=self.step, **parts)
        self.step += 1
        for q in self.queues:
            q.put(request)

    def receive(self) -> pb.StepReply:
        """Rank 0's reply; the others' are checked against it."""
        first, *others = [next(replies) for replies in self.replies]
        for other in others:
            assert list(other.token_ids) == list(first.token_ids)
        return first

    def close(self) -> None:
        for q in self.queues:
            q.put(None)
        for replies in self.replies:
            assert list(replies) == []


class Driver:
    """Plans like a router, as simply as can be: a fixed chunk, first come first served."""

    def __init__(self, workers: Sequence[Worker], loaded: pb.Loaded, epoch: int = 1) -> None:
        self.workers = workers
        self.stream = Stream(workers, epoch)
        self.block_tokens = loaded.kv_groups[0].block_tokens
        self.windows = [group.window for group in loaded.kv_groups]
        self.recurrent = [n for n, group in enumerate(loaded.kv_groups) if group.recurrent]
        # High numbers last: any order must do.
        self.pools = [list(range(group.blocks))[::-1] for group in loaded.kv_groups]
        self.leases: Counter[tuple[int, int]] = Counter()  # of (group, block), beyond the first
        self.when_free: Callable[[int, int], None] = lambda group, block: None
        self.slots = list(range(loaded.max_slots))
        self.budget = loaded.max_step_tokens
        self.finished: list[int] = []
        self.new: list[Running] = []
        self.copies: list[pb.BlockCopies] = []  # of the next step

    @property
    def free(self) -> list[int]:
        """Free blocks of the first KV group."""
        return self.pools[0]

    def passed(self, group: int, computed: int) -> int:
        """Blocks of a table that no run after `computed` tokens reads."""
        window = self.windows[group]
        return max(computed + 1 - window, 0) // self.block_tokens if window else 0

    def enter(self, sequence: Running) -> None:
        """Gives the sequence a slot; it travels with the next step. Its grammar is prepared."""
        if sequence.grammar is not None:
            message = pb.PrepareRequest(sampling=sequence.sampling, grammar=sequence.grammar)
            for worker in self.workers:
                worker.stub.Prepare(message)
        sequence.slot, sequence.computed = self.slots.pop(), 0
        sequence.tables = [[] for _ in self.pools]
        sequence.released = [0] * len(self.pools)
        self.new.append(sequence)

    def enter_after(self, sequence: Running, other: Running) -> None:
        """The same with a prefix hit: the blocks that another one's prompt has filled, with which
        this one begins; any number stands where a window has passed."""
        self.enter(sequence)
        shared = min(len(sequence.prompt) - 1, len(other.prompt)) // self.block_tokens
        sequence.computed = shared * self.block_tokens
        for group, table in enumerate(other.tables):
            if group in self.recurrent:
                if sequence.computed:
                    checkpoint = other.checkpoints[group, sequence.computed]
                    sequence.tables[group] = [self._copy(group, checkpoint)]
                continue
            passed = self.passed(group, sequence.computed)
            held = max(passed, other.released[group])
            for block in table[passed:held]:
                self.pools[group].remove(block)  # free, but not written since
            self.leases.update((group, block) for block in table[held:shared])
            sequence.tables[group] = [*[(1 << 32) - 1] * passed, *table[passed:shared]]
            sequence.released[group] = passed

    def _copy(self, group: int, source: int) -> int:
        """A new block, to which the next step copies another."""
        own = self.pools[group].pop()
        self.copies.append(pb.BlockCopies(group=group, sources=[source], destinations=[own]))
        return own

    def _checkpoint(self, sequence: Running) -> None:
        """Keeps the states from which the sequence runs on, if they are at the end of a block."""
        at = sequence.computed
        if at and at % self.block_tokens == 0 and at < len(sequence.prompt):
            for group in self.recurrent:
                if (group, at) not in sequence.checkpoints and sequence.tables[group]:
                    state = self._copy(group, sequence.tables[group][0])
                    sequence.checkpoints[group, at] = state

    def _run_length(self, sequence: Running, most: int) -> int:
        """Tokens of the next run, at most `most`. With recurrent groups, a prompt's run ends with
        the last block before its last token, where it passes that."""
        tokens = min(sequence.known - sequence.computed, most)
        boundary = (sequence.known - 1) // self.block_tokens * self.block_tokens
        end = sequence.computed + tokens
        cuts = self.recurrent and not sequence.tokens and sequence.computed < boundary < end
        return boundary - sequence.computed if cuts else tokens

    def fork(self, *sources: Running, steered: int | None = None) -> list[Running]:
        """Sequences that go on from where these are, each with a copy of the last, partial block;
        with the token `steered` in the place of their last, if given."""
        forks: list[Running] = []
        splits, copies = [], []
        for source in sources:
            fork = replace(
                source,
                slot=self.slots.pop(),
                tables=[],
                released=list(source.released),
                tokens=list(source.tokens),
                logprobs=list(source.logprobs),
            )
            for group, (*shared, last) in enumerate(source.tables):
                own = self.pools[group].pop()
                fork.tables.append([*shared, own])
                held = shared[source.released[group] :]
                self.leases.update((group, block) for block in held)
                copies.append(pb.BlockCopies(group=group, sources=[last], destinations=[own]))
            splits.append(
                pb.SlotFork(
                    source=source.slot,
                    destination=fork.slot,
                    tables=tables(fork.tables),
                    seed=1,
                )
            )
            forks.append(fork)
        steering: dict[str, list[int]] = {}
        if steered is not None:
            for fork in forks:
                fork.tokens[-1] = steered
            slots = [fork.slot for fork in forks]
            steering = {"steered_slots": slots, "steered_tokens": [steered] * len(slots)}
        self.stream.send(forks=splits, copies=copies, **steering)
        self.stream.receive()
        return forks

    def leave(self, sequence: Running) -> None:
        """Drops the sequence with the next step; it may enter again."""
        self.finished.append(sequence.slot)
        self.slots.insert(0, sequence.slot)
        for group, table in enumerate(sequence.tables):
            held = table[sequence.released[group] :]
            self.pools[group][:0] = [block for block in held if self._give_back(group, block)]
        for (group, _), block in sequence.checkpoints.items():
            self.pools[group].insert(0, block)
        sequence.checkpoints = {}

    def _give_back(self, group: int, block: int) -> bool:
        """Whether a block that one sequence holds no more is free now."""
        if self.leases[group, block]:
            self.leases[group, block] -= 1
            return False
        self.when_free(group, block)
        return True

    def _release(self, sequence: Running) -> None:
        """Frees blocks behind windows; their numbers stay in the table, and are soon others'."""
        for group, table in enumerate(sequence.tables):
            passed = self.passed(group, sequence.computed)
            for block in table[sequence.released[group] : passed]:
                if self._give_back(group, block):
                    self.pools[group].append(block)
            sequence.released[group] = max(passed, sequence.released[group])

    def step(self, sequences: Sequence[Running], chunk: int = 512) -> pb.StepReply:
        """Runs one step of these sequences and takes its outcome in."""
        runs, parts = [], []
        growth = [pb.BlockGrowth(group=group) for group in range(len(self.pools))]
        new = [new_sequence(s, s.computed, *s.tables) for s in self.new]
        budget = self.budget
        for sequence in sequences:
            tokens = self._run_length(sequence, min(chunk, budget))
            if sequence.done or tokens < 1:
                continue
            budget -= tokens
            self._checkpoint(sequence)
            for group, grown in enumerate(growth):
                table, pool = sequence.tables[group], self.pools[group]
                needed = -(-(sequence.computed + tokens) // self.block_tokens) - len(table)
                if group in self.recurrent:
                    needed = 1 - len(table)
                blocks = [pool.pop() for _ in range(needed)]
                grown.counts.append(len(blocks))
                grown.blocks.extend(blocks)
                table += blocks
            runs.append(sequence)
            parts.append(tokens)
        self.stream.send(
            finished=self.finished,
            new=new,
            copies=self.copies,
            growth=growth,
            run_slots=[s.slot for s in runs],
            run_tokens=parts,
        )
        self.finished, self.new, self.copies = [], [], []
        reply = self.stream.receive()
        for sequence, tokens in zip(runs, parts, strict=True):
            sequence.computed += tokens
        self._take(reply, {s.slot: s for s in sequences})
        for sequence in runs:
            # A yielding run may bring no token: then the last one runs again.
            sequence.computed = min(sequence.computed, sequence.known - 1)
            self._release(sequence)
        return reply

    @staticmethod
    def _take(reply: pb.StepReply, by_slot: dict[int, Running]) -> None:
        assert list(reply.counts) == [1] * len(reply.slots)
        for slot, token, logprob in zip(reply.slots, reply.token_ids, reply.logprobs, strict=True):
            by_slot[slot].tokens.append(token)
            by_slot[slot].logprobs.append(logprob)
        for error in reply.errors:
            by_slot[error.slot].error = error.error.message

    def finish(self, sequences: Sequence[Running], chunk: int = 512) -> None:
        """Runs the sequences to their ends."""
        while not all(s.done for s in sequences):
            before = sum(s.computed for s in sequences)
            self.step(sequences, chunk)
            went_on = sum(s.computed for s in sequences) > before
            # A sequence with a grammar skips a step if its mask is late.
            assert went_on or any(s.grammar for s in sequences), "no sequence can run"
        for sequence in sequences:
            self.leave(sequence)


def tables(by_group: Sequence[Sequence[int]]) -> list[pb.BlockTable]:
    """A sequence's tables."""
    return [pb.BlockTable(group=group, blocks=blocks) for group, blocks in enumerate(by_group)]


def new_sequence(sequence: Running, computed: int, *by_group: Sequence[int]) -> pb.NewSequence:
    """The message with which a sequence enters a worker."""
    return pb.NewSequence(
        slot=sequence.slot,
        request_id=sequence.request,
        token_ids=sequence.prompt + sequence.tokens,
        generated=len(sequence.tokens),
        computed=computed,
        tables=tables(by_group),
        sampling=sequence.sampling,
        grammar=sequence.grammar,
    )


def greedy(prompt: list[int], wanted: int = 64, **sampling: Any) -> Running:
    """A sequence that is decoded greedily unless `sampling` says otherwise."""
    return Running(prompt, wanted, pb.Sampling(**{"temperature": 0.0, "top_p": 1.0, **sampling}))


def running(
    model: Path | str, size: int = 1, **settings: Any
) -> Iterator[tuple[list[Worker], pb.Loaded]]:
    """A loaded group of `size` workers, closed afterwards. For fixtures: `yield from`."""
    workers = [Worker(rank) for rank in range(size)]
    meeting = tempfile.TemporaryDirectory(prefix="penstock-meet-")
    settings = {**settings, "world_size": size}
    if size > 1:
        settings["rendezvous"] = f"file://{meeting.name}/group"
    loaded: list[Any] = [None] * size

    def load(worker: Worker) -> None:
        loaded[worker.rank] = worker.load(model, **settings)

    try:
        threads = [threading.Thread(target=load, args=(w,)) for w in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(loaded), "a worker did not load; its error is above"
        yield workers, loaded[0]
    finally:
        for worker in workers:
            worker.close()
        meeting.cleanup()


def chunked_hit_and_preempted(
    driver: Driver, ids: list[int], wanted: int, before: int
) -> tuple[Running, Running]:
    """Runs a prompt of 90 tokens in chunks, then again on top of its cached blocks. The second
    sequence is recomputed in chunks, `before` steps after it began. Closes the driver's stream."""
    first, second = greedy(ids, wanted), greedy(ids, wanted)
    driver.enter(first)
    while not first.tokens:
        driver.step([first], chunk=32)
    driver.enter_after(second, first)
    assert second.computed == 80
    for _ in range(before):
        driver.step([first, second])
    assert 0 < len(second.tokens) < wanted
    driver.leave(second)
    driver.step([first])
    driver.enter(second)
    driver.finish([first, second], chunk=32)
    driver.stream.close()
    return first, second
