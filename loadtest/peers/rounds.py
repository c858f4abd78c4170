"""Rounds of all work on all peers in turn, one computing at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.peers.peer import Peer, PeerFailed, PeerProcess, Workload
from loadtest.report import say
from loadtest.roofline import probe
from loadtest.roofline.probe import Limits, ProbeUnavailable


@dataclass
class Outcome:
    """One peer's runs."""

    peer: Peer
    runs: dict[str, list[Any]] = field(default_factory=dict)  # by the work's name
    ready_s: float | None = None
    memory_bytes: int | None = None
    once: list[str] = field(default_factory=list)  # work that was too slow to be repeated
    failures: list[str] = field(default_factory=list)  # what went wrong, in order

    def to_dict(self) -> dict[str, Any]:
        """All but the runs."""
        return {
            **self.peer.to_dict(),
            "ready_s": self.ready_s,
            "memory_bytes": self.memory_bytes,
            "once": self.once,
            "failures": self.failures,
        }


@dataclass
class Rounds:
    outcomes: list[Outcome]
    work: Sequence[Any]
    done: int = 0
    limits: list[Limits] = field(default_factory=list)
    """The machine's, by a probe before each piece of work, while nothing computed."""
    notes: list[str] = field(default_factory=list)


def take_turns(
    peers: Sequence[Peer],
    work: Sequence[Workload],
    *,
    rounds: int,
    budget: float,
    logs: Path,
    probes: bool = False,
) -> Iterator[Rounds]:
    """All peers stay loaded; those that don't compute are stopped (SIGSTOP) where they bear it.

    Once the budget (seconds, starts included) is over, no more work is begun.  Yields the same
    object after each piece of work on all peers, and at the end.  probes: whether the machine's
    limits are measured before each piece of work: a shared machine's memory may be half as fast a
    minute later.
    """
    began = time.monotonic()
    found = Rounds([Outcome(peer) for peer in peers], work)
    with ExitStack() as stack:
        loaded = _load_all(found, logs, stack)
        for number, piece in itertools.product(range(rounds), work):
            since = time.monotonic() - began
            if since > budget:
                found.notes.append(
                    f"Ended in round {number + 1} of {rounds}, before {piece.name}: "
                    f"{budget:g} s were over."
                )
                break
            if piece is work[0]:
                say(f"round {number + 1} of {rounds}, {since:.0f} s since the start")
            probes = probes and _probe(found)
            for outcome, process in list(loaded):
                if not _take(outcome, process, piece, number):
                    loaded.remove((outcome, process))
            if piece is work[-1]:
                found.done = number + 1
            yield found
        for outcome, process in loaded:
            outcome.memory_bytes = process.memory()
    yield found


def _load_all(found: Rounds, logs: Path, stack: ExitStack) -> list[tuple[Outcome, PeerProcess]]:
    loaded = []
    for outcome in found.outcomes:
        peer = outcome.peer
        process = peer.process(logs / f"{peer.name}.log")
        try:
            stack.enter_context(process)
            outcome.ready_s = round(process.ready_s, 2)
            say(f"{peer.name}: ready in {process.ready_s:.1f} s; warming up")
            for work in filter(peer.takes, found.work):
                process.warm_up(work)
        except PeerFailed as error:
            _fail(outcome, process, error)
            continue
        process.pause()
        loaded.append((outcome, process))
    return loaded


def _take(outcome: Outcome, process: PeerProcess, work: Workload, turn: int) -> bool:
    """One run of one piece of work. False: the peer is of no use any more."""
    name = outcome.peer.name
    if not outcome.peer.takes(work) or work.name in outcome.once:
        return True
    try:
        process.resume()
        run = process.run(work, turn)
        process.pause()
    except PeerFailed as error:
        _fail(outcome, process, error)
        return False
    if fault := work.fault(run):
        outcome.failures.append(f"{work.name}: {fault}")
        say(f"{name}: {work.name}: {fault}")
        return True
    outcome.runs.setdefault(work.name, []).append(run)
    if work.too_slow(run):
        outcome.once.append(work.name)
    say(f"{name}: {work.name}: done")
    return True


def _fail(outcome: Outcome, process: PeerProcess, error: PeerFailed) -> None:
    outcome.failures.append(str(error))
    say(str(error))
    process.stop(grace=0.5)


def _probe(found: Rounds) -> bool:
    """Whether there is a point in another probe."""
    try:
        found.limits.append(probe.measure())
    except ProbeUnavailable as error:
        found.notes.append(f"{error}.")
        say(str(error))
        return False
    return True
