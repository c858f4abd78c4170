"""The engine core's end of several workers that are ranks of one model."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import zmq
from torch import Tensor

from penstock.config.settings import TransportSettings
from penstock.process import logs
from penstock.protocol.from_worker import Fault, FromWorker, Ready, Result, WorkerHello
from penstock.protocol.to_worker import Plan, RankGroup, Setup, Stop
from penstock.transport.events import Ended, Opened, Received
from penstock.transport.session_server import SessionServer
from penstock_worker.forward.interface import Batch
from penstock_worker.process import main
from penstock_worker.worker import FINAL

SETTINGS = TransportSettings(beat_interval=0.2, peer_timeout=60.0)
SMALL = 3
SHORT = 100
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["penstock_worker.loading.load", "penstock_worker.parallel.group"])
"""Importing torch once is enough for all ranks."""


def run_rank(endpoint: str, rank: int, log: str) -> None:
    """A worker's process. log: the file that its stderr goes to."""
    with open(log, "a") as file:
        os.dup2(file.fileno(), 2)
    logs.setup(f"worker {rank}")
    try:
        main(endpoint, rank, SETTINGS)
    except FINAL:
        raise SystemExit(78) from None


def run_small_rank(endpoint: str, rank: int, log: str) -> None:
    """Runs a rank as `run_rank` does; rank 0's device has no memory for steps of more than SMALL
    tokens."""
    from penstock_worker.forward.reference import ReferenceForward

    if rank == 0:
        logits = ReferenceForward.logits

        def refuse_large(self: ReferenceForward, batch: Batch, rows: np.ndarray) -> Tensor:
            if len(batch.tokens) > SMALL:
                raise torch.OutOfMemoryError("no room for 3 GiB")
            return logits(self, batch, rows)

        ReferenceForward.logits = refuse_large  # type: ignore[method-assign]
    run_rank(endpoint, rank, log)


def run_rank_over_tcp(endpoint: str, rank: int, log: str) -> None:
    """Runs a rank as `run_rank` does, that shares no memory with others, as on another machine."""
    from penstock_worker.parallel import shared_memory

    shared_memory.platform.machine = lambda: "another"
    run_rank(endpoint, rank, log)


def run_held_rank(endpoint: str, rank: int, log: str) -> None:
    """Runs a rank as `run_rank` does; in a step of more than SHORT tokens, rank 1 stays until it is
    told to give up. However late a rank hears that its session is over, no other ends itself for
    that."""
    from penstock_worker.forward.reference import ReferenceForward
    from penstock_worker.parallel import membership

    membership.STUCK_SECONDS = 60.0
    if rank == 1:
        logits = ReferenceForward.logits

        def stay_in_long(self: ReferenceForward, batch: Batch, rows: np.ndarray) -> Tensor:
            while len(batch.tokens) > SHORT:
                self._go_on()
                self._check()
                time.sleep(0.01)
            return logits(self, batch, rows)

        ReferenceForward.logits = stay_in_long  # type: ignore[method-assign]
    run_rank(endpoint, rank, log)


class GroupEngine:
    """run: what a rank's process does.  workers: their processes, by rank.  heard: (rank, message)
    that nobody has asked for yet."""

    def __init__(
        self,
        folder: Path,
        tensor: int,
        pipeline: int = 1,
        run: Callable[[str, int, str], None] = run_rank,
    ) -> None:
        self._run = run
        self.endpoint = f"ipc://{folder}/worker"
        self.tensor, self.pipeline = tensor, pipeline
        self.number = 0
        self._context = zmq.Context()
        decoder = msgspec.msgpack.Decoder(FromWorker)
        self.server: SessionServer[FromWorker] = SessionServer(
            self._context, self.endpoint, decoder, SETTINGS, b"12345678", "workers"
        )
        self.sessions: dict[int, bytes] = {}
        self.hellos: dict[int, WorkerHello] = {}
        self.heard: list[tuple[int, Any]] = []
        self.workers: dict[int, Any] = {}
        self._folder = folder
        self.ranks = range(tensor * pipeline)
        for rank in self.ranks:
            self.start(rank)

    def start(self, rank: int) -> None:
        self.workers[rank] = _FORKS.Process(
            target=self._run, args=(self.endpoint, rank, str(self._log(rank))), daemon=True
        )
        self.workers[rank].start()

    def said(self, rank: int) -> str:
        """What its log holds."""
        return self._log(rank).read_text()

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.log"

    def turn(self) -> None:
        self.server.socket.poll(10)
        for event in self.server.poll(time.monotonic()):
            if isinstance(event, Opened):
                hello = event.message
                assert isinstance(hello, WorkerHello)
                self.sessions[hello.rank] = event.session
                self.hellos[hello.rank] = hello
            elif isinstance(event, Ended):
                for rank in [r for r, session in self.sessions.items() if session == event.session]:
                    del self.sessions[rank], self.hellos[rank]
            elif isinstance(event, Received):
                for rank, session in self.sessions.items():
                    if session == event.session:
                        self.heard.append((rank, event.message))

    def until(self, done: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= end:
                raise TimeoutError(f"nothing came; {self.heard}")
            self.turn()

    def hear(self, kind: type, ranks: Sequence[int] | None = None) -> list[Any]:
        """The next message of that type of each of these ranks."""
        wanted = list(self.ranks) if ranks is None else list(ranks)

        def found(rank: int) -> list[Any]:
            return [m for r, m in self.heard if r == rank and isinstance(m, kind)]

        def all_there() -> bool:
            faults = [(r, m) for r, m in self.heard if isinstance(m, Fault)]
            assert kind is Fault or not faults, faults
            return all(found(rank) for rank in wanted)

        self.until(all_there)
        taken = [(rank, found(rank)[0]) for rank in wanted]
        for one in taken:
            self.heard.remove(one)
        return [message for _, message in taken]

    def form(self, setup: Setup, own: dict[int, Setup] | None = None) -> list[Ready]:
        """Wait for all to dial, set all up as one group. own: of ranks that get another setup."""
        self.until(lambda: len(self.hellos) == len(self.ranks))
        self.number += 1
        for rank in self.ranks:
            group = RankGroup(
                tensor=self.tensor,
                pipeline=self.pipeline,
                rank=rank,
                rendezvous=self.hellos[0].rendezvous,
                number=self.number,
            )
            asked = (own or {}).get(rank, setup)
            self.server.send(self.sessions[rank], msgspec.structs.replace(asked, group=group))
        return self.hear(Ready)

    def send(self, message: Plan | Stop) -> None:
        for session in self.sessions.values():
            self.server.send(session, message)

    def step(self, plan: Plan) -> list[Result]:
        self.send(plan)
        return self.hear(Result)

    def drop(self) -> None:
        """End every session, as when a rank is lost."""
        for session in list(self.sessions.values()):
            self.server.end(session, "a rank was lost")
        self.until(lambda: not self.sessions)
        self.heard.clear()

    def close(self) -> None:
        for worker in self.workers.values():
            worker.kill()
            worker.join(60)
        self.server.close()
        self._context.destroy(linger=0)
