"""What `--numa auto` should gain on two sockets: `python -m loadtest.two_sockets`.

Measured is a message between two ranks, on two processors of this machine: columns that each has
computed a half of, as the CPU kernels exchange them four times in a layer. The rest is a model: a
token's bytes are read from one node's memory, or halves of them from two, and then there are the
messages. Between sockets, a message's cache lines are longer on their way than here.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, sections, table
from penstock.recommend.releases import RELEASES, KnownRelease

SHAPES = ((1, 896), (1, 4096), (8, 4096), (512, 4096))
"""Rows and columns of messages."""
DECODE = SHAPES[1]
"""The one that the model takes."""
TRANSPORTS = ("shared memory", "TCP on loopback")
PATIENCE = 120.0
"""Seconds that ranks may take."""
PER_LAYER, BESIDE = 4, 2
"""Messages of a step: in each layer, and for the embedding and the logits."""

MESSAGES = {"rows": "{rows}", "columns": "{columns}"} | {
    f"{name}, µs": f"{{{name}:,.0f}}" for name in TRANSPORTS
}
MODELS = {
    "model": "{model}",
    "GB a token": "{gigabytes:.2f}",
    "messages": "{messages}",
    "one node, ms": "{one:.1f}",
    "two nodes, ms": "{two:.1f}",
    "gain": "{gain:.2f}",
    "over TCP": "{tcp:.2f}",
}


def measure(flags: Flags) -> Document:
    """The messages, and what follows from them for each known release."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise SetupError("two ranks need a processor each")
    found = {name: messages(name, processors[:2], flags.rounds) for name in TRANSPORTS}
    rows = [
        {"rows": shape[0], "columns": shape[1], **{name: found[name][at] for name in TRANSPORTS}}
        for at, shape in enumerate(SHAPES)
    ]
    at = SHAPES.index(DECODE)
    seconds = [1e-6 * found[name][at] for name in TRANSPORTS]
    models = [expected(one, 1e9 * flags.bandwidth, *seconds) for one in RELEASES]
    return {"bandwidth": flags.bandwidth, "messages": rows, "models": models}


def expected(
    release: KnownRelease, bandwidth: float, message: float, by_tcp: float
) -> dict[str, Any]:
    """Milliseconds of a token of one answer. bandwidth: bytes per second of a node.
    message, by_tcp: seconds of one."""
    count = PER_LAYER * release.layers + BESIDE
    one = release.read / bandwidth
    two, tcp = one / 2 + count * message, one / 2 + count * by_tcp
    return {
        "model": release.name,
        "gigabytes": release.read / 1e9,
        "messages": count,
        "one": 1e3 * one,
        "two": 1e3 * two,
        "gain": one / two,
        "tcp": one / tcp,
    }


def messages(transport: str, processors: list[int], rounds: int) -> list[float]:
    """Median microseconds of each of SHAPES."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in processors]
    ranks = [
        context.Process(target=run_rank, args=(rank, processor, transport, rounds, pipes[rank][1]))
        for rank, processor in enumerate(processors)
    ]
    try:
        for rank in ranks:
            rank.start()
        first = _heard(pipes[0][0])
        pipes[1][0].send(first)
        found: list[float] = _heard(pipes[0][0])
        return found
    finally:
        for rank in ranks:
            rank.join(PATIENCE)
            rank.kill()


def _heard(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE):
        raise SetupError(f"a rank said nothing in {PATIENCE:g} s")
    return pipe.recv()


def run_rank(rank: int, processor: int, transport: str, rounds: int, pipe: Connection) -> None:
    """One of two ranks, in its process."""
    import numpy as np
    import torch

    from penstock.protocol.to_worker import RankGroup
    from penstock_kernels.cpu.decoder import Exchanges
    from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
    from penstock_worker.forward.cpu.split import ColumnExchange
    from penstock_worker.parallel import group
    from penstock_worker.parallel.place import RankPlace
    from penstock_worker.parallel.ranks import Ranks
    from penstock_worker.parallel.rendezvous import Rendezvous

    os.sched_setaffinity(0, {processor})
    torch.set_num_threads(1)
    if transport != TRANSPORTS[0]:
        group.memory_gather = lambda *_: None  # type: ignore[assignment]
    rendezvous = Rendezvous("127.0.0.1")
    if rank == 0:
        pipe.send(rendezvous.address())
    first = rendezvous.address() if rank == 0 else pipe.recv()
    named = RankGroup(tensor=2, pipeline=1, rank=rank, rendezvous=first, number=1)
    ranks = Ranks(RankPlace(2, 1, rank))
    ranks.join(group.Group(named, rendezvous, torch.device("cpu"), lambda: True))
    found = []
    for rows, columns in SHAPES:
        values = np.ones((rows, columns), np.float32)
        halves = range(columns // 2), range(columns // 2, columns)
        phase = Phase(
            kind=PhaseKind.EXCHANGE,
            source=Buffer.RESIDUAL,
            width=columns,
            part=True,
            exchange=ColumnExchange(ranks, halves),
        )
        program = Exchanges([phase])
        taken = []
        for _ in range(rounds):
            began = time.perf_counter()
            program.begin()
            program.function(0, values.ctypes.data, rows, columns)
            taken.append(1e6 * (time.perf_counter() - began))
            program.check(cancelled=False)
        found.append(statistics.median(taken))
    if rank == 0:
        pipe.send(found)
    ranks.leave()
    rendezvous.close()


def text(document: Document) -> str:
    return sections(
        [
            "# Two sockets",
            f"{machine_line(document)}.",
            "A message between two ranks, as the kernels' program calls for it, median:",
            table(MESSAGES, document["messages"]),
            "**The rest is a model**: no machine with two sockets was at hand. A token of one"
            f" answer reads each weight once, at {document['bandwidth']:g} GB/s of each node, and"
            f" waits for messages of {DECODE[0]} row and {DECODE[1]:,} columns; nothing else takes"
            " time:",
            table(MODELS, document["models"]),
        ]
    )


COMMAND = Measurement(
    "two_sockets",
    __doc__,
    measure,
    text,
    {
        "--rounds": (2000, "messages of each size"),
        "--bandwidth": {"type": float, "default": 200.0, "help": "GB/s of a node's memory (200)"},
    },
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
