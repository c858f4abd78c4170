"""Which share of its time a worker computes: `python loadtest/worker_busy.py --help`.

First a worker that sleeps through each step and otherwise speaks the whole protocol with a real
engine core, then the real worker with the default model: 64 and 8 streams of decodes, with one
step in flight and with two.  What is missing to 100 % is the wait for the next plan.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from loadtest.report.facts import machine_line
from loadtest.report.files import Facts, Report, parser, say
from penstock.bench.load.report import markdown_table
from penstock.client import EngineClient
from penstock.config.settings import TransportSettings
from penstock.llm import AsyncLLM
from penstock.prepare import prepare
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan, Setup
from penstock.sampling_params import SamplingParams
from penstock_worker.engine_session import CoreSession
from testing.null_worker import Answers, ready
from testing.processes import MODEL, back, engine, front_end
from testing.words import WORDS

PROGRAM = "loadtest/worker_busy.py"
PROMPT = [1000 + number for number in range(16)]


class Sleeper:
    """A worker that sleeps for `step_seconds` in each step, and always gives token 5."""

    def __init__(self, endpoint: str, step_seconds: float) -> None:
        self._session = CoreSession(endpoint, 0, TransportSettings())
        self._step_seconds = step_seconds
        self._answers = Answers([5] * len(WORDS))
        self.busy = 0.0  # seconds inside steps that only decode
        self._first = self._last = 0.0

    @property
    def span(self) -> float:
        """Seconds from the first of these steps to the last."""
        return self._last - self._first

    def run(self) -> None:
        """Until the session ends."""
        self._session.start()
        while True:
            heard = self._session.inbox.get()
            if isinstance(heard.message, Setup):
                self._session.send(heard.session, ready(heard.message))
            elif isinstance(heard.message, Plan):
                self._session.send(heard.session, self._execute(heard.message))
            else:
                return

    def _execute(self, plan: Plan) -> Result:
        begun = time.monotonic()
        time.sleep(self._step_seconds)
        slots = self._answers.results(plan)
        ended = time.monotonic()
        if not plan.admitted:
            self.busy += ended - begun
            self._first = self._first or begun
            self._last = ended
        return Result(plan.step, slots, ended - begun)


def sleeping(folder: Path, in_flight: int, streams: int, tokens: int, step: float) -> float:
    """The busy share of a worker that sleeps."""
    flags = [f"--max-steps-in-flight={in_flight}", f"--max-num-seqs={streams}"]
    with tempfile.TemporaryDirectory(prefix="pst-") as sockets:
        place = Path(sockets)
        arguments = ["--as-worker", back(place), f"--step-ms={1e3 * step}"]
        with (
            engine(place, folder, flags) as core,
            subprocess.Popen(
                [sys.executable, __file__, *arguments], stdout=subprocess.PIPE
            ) as worker,
        ):
            asyncio.run(_generate(front_end(place), streams, tokens))
            core.process.terminate()
            said, _ = worker.communicate(timeout=30)
            return float(said)


async def _generate(endpoint: str, streams: int, tokens: int) -> None:
    client = EngineClient(endpoint, name="worker_busy")
    await client.start()
    try:
        await client.wait_connected(30.0)
        while client.status is None or not client.status.ready:
            await asyncio.sleep(0.05)
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(_one(client, number, params))
    finally:
        await client.close()


async def _one(client: EngineClient, number: int, params: SamplingParams) -> None:
    async for _ in await client.submit([number + 3, *PROMPT], params, name=str(number)):
        pass


async def real(in_flight: int, streams: int, tokens: int) -> float:
    """The busy share of the real worker, by its own clock against ours."""
    async with AsyncLLM(MODEL, max_steps_in_flight=in_flight) as llm:
        client: Any = llm._started()  # Its Status is what this measures.
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        await _one(client, 999, params)
        await _settled(client)
        before, begun = client.status.compute_seconds, time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(_one(client, number, params))
        span = time.monotonic() - begun
        await _settled(client)
        return float(client.status.compute_seconds - before) / span


async def _settled(client: EngineClient) -> None:
    """Until a Status has come that counts everything."""
    await asyncio.sleep(2 * TransportSettings().beat_interval)


def main() -> None:
    command = parser(PROGRAM, __doc__)
    command.add_argument("--step-ms", type=float, default=5.0, help="of the worker that sleeps")
    command.add_argument("--tokens", type=int, default=400)
    command.add_argument("--as-worker", metavar="ENDPOINT", help=argparse.SUPPRESS)
    flags = command.parse_args()
    if flags.as_worker:
        worker = Sleeper(flags.as_worker, flags.step_ms / 1000)
        worker.run()
        print(worker.busy / worker.span)
        return
    report, folder = Report("worker_busy", PROGRAM, flags), prepare(MODEL)
    rows = []
    for streams in (8, 64):
        row: dict[str, Any] = {"streams": streams}
        for in_flight in (1, 2):
            share = sleeping(folder, in_flight, streams, flags.tokens, flags.step_ms / 1000)
            row[f"sleeping_{in_flight}"] = share
            row[f"real_{in_flight}"] = asyncio.run(real(in_flight, streams, flags.tokens // 4))
        rows.append(row)
        say(json.dumps(row))
    report.finish(
        {"step_ms": flags.step_ms, "rows": rows}, lambda facts: table(facts, flags.step_ms, rows)
    )


def table(facts: Facts, step_ms: float, rows: list[dict[str, Any]]) -> str:
    names = ("sleeping_1", "sleeping_2", "real_1", "real_2")
    head = ["streams", f"{step_ms:g} ms steps, 1 in flight", "2 in flight"]
    head += ["real model, 1 in flight", "2 in flight"]
    cells = [[str(r["streams"]), *(f"{100 * r[name]:.1f} %" for name in names)] for r in rows]
    text = f"{machine_line(facts)}\n\nShare of the time that the worker computes:\n\n"
    return text + markdown_table(head, cells)


if __name__ == "__main__":
    main()
