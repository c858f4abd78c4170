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

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from loadtest.facts import machine_line, now, run_facts  # noqa: E402
from penstock.bench.load.report import markdown_table  # noqa: E402
from penstock.client import EngineClient  # noqa: E402
from penstock.config.settings import TransportSettings  # noqa: E402
from penstock.llm import AsyncLLM  # noqa: E402
from penstock.prepare import prepare  # noqa: E402
from penstock.protocol.from_worker import Ready, Result, SlotResult  # noqa: E402
from penstock.protocol.to_worker import Plan, Setup  # noqa: E402
from penstock.sampling_params import SamplingParams  # noqa: E402
from penstock_worker.engine_session import CoreSession  # noqa: E402

PROGRAM = "loadtest/worker_busy.py"
MODEL = "smollm2-135m"
PROMPT = [1000 + number for number in range(16)]


class Sleeper:
    """A worker whose steps take `step_seconds` and give token 5.

    busy: seconds inside steps that only decode.  span: from the first of them to the last.
    """

    def __init__(self, endpoint: str, step_seconds: float) -> None:
        self._session = CoreSession(endpoint, 0, TransportSettings())
        self._step_seconds = step_seconds
        self._slots: dict[int, list[int]] = {}
        self._prompts: dict[int, int] = {}
        self.busy = 0.0
        self._first = self._last = 0.0

    @property
    def span(self) -> float:
        return self._last - self._first

    def run(self) -> None:
        """Until the session ends."""
        self._session.start()
        while True:
            heard = self._session.inbox.get()
            if isinstance(heard.message, Setup):
                ready = Ready(
                    num_kv_blocks=100_000, device="none", fingerprint="none", load_seconds=0.0
                )
                self._session.send(heard.session, ready)
            elif isinstance(heard.message, Plan):
                self._session.send(heard.session, self._execute(heard.message))
            else:
                return

    def _execute(self, plan: Plan) -> Result:
        begun = time.monotonic()
        for new in plan.admitted:
            shared = 0 if new.like is None else self._prompts[new.like]
            self._prompts[new.slot] = shared or new.num_prompt
            self._slots[new.slot] = [shared + len(new.tokens), 0]
        time.sleep(self._step_seconds)
        slots = [self._outcome(work.slot, work.start + work.count) for work in plan.work]
        ended = time.monotonic()
        if not plan.admitted:
            self.busy += ended - begun
            self._first = self._first or begun
            self._last = ended
        return Result(plan.step, slots, ended - begun)

    def _outcome(self, slot: int, end: int) -> SlotResult:
        known = self._slots[slot]
        if end < known[0]:
            return SlotResult(slot)
        known[0] += 1
        return SlotResult(slot, 5)


def sleeping(folder: Path, in_flight: int, streams: int, tokens: int, step: float) -> float:
    """The busy share of a worker that sleeps."""
    with tempfile.TemporaryDirectory() as sockets:
        front, back = f"ipc://{sockets}/front", f"ipc://{sockets}/back"
        command = [sys.executable, "-m", "penstock.cli.main", "engine", "--model-dir", str(folder)]
        command += ["--frontend-endpoint", front, "--worker-endpoint", back]
        command += [f"--max-steps-in-flight={in_flight}", f"--max-num-seqs={streams}"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as engine:
            try:
                arguments = [
                    sys.executable,
                    __file__,
                    "--as-worker",
                    back,
                    f"--step-ms={1e3 * step}",
                ]
                with subprocess.Popen(arguments, stdout=subprocess.PIPE) as worker:
                    asyncio.run(_generate(front, streams, tokens))
                    engine.terminate()
                    said, _ = worker.communicate(timeout=30)
                    return float(said)
            finally:
                engine.terminate()


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
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--step-ms", type=float, default=5.0, help="of the worker that sleeps")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--output", type=Path, default=ROOT / "loadtest" / "results")
    parser.add_argument("--as-worker", metavar="ENDPOINT", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.as_worker:
        worker = Sleeper(flags.as_worker, flags.step_ms / 1000)
        worker.run()
        print(worker.busy / worker.span)
        return
    started, folder = now(), prepare(MODEL)
    rows = []
    for streams in (8, 64):
        row: dict[str, Any] = {"streams": streams}
        for in_flight in (1, 2):
            share = sleeping(folder, in_flight, streams, flags.tokens, flags.step_ms / 1000)
            row[f"sleeping_{in_flight}"] = share
            row[f"real_{in_flight}"] = asyncio.run(real(in_flight, streams, flags.tokens // 4))
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    facts = run_facts(PROGRAM, sys.argv[1:], started)
    flags.output.mkdir(parents=True, exist_ok=True)
    document = {**facts, "step_ms": flags.step_ms, "rows": rows}
    (flags.output / "worker_busy.json").write_text(json.dumps(document, indent=1) + "\n")
    names = ("sleeping_1", "sleeping_2", "real_1", "real_2")
    headings = [f"{flags.step_ms:g} ms steps, 1 in flight", "2 in flight"]
    headings += ["real model, 1 in flight", "2 in flight"]
    cells = [[str(r["streams"]), *(f"{100 * r[name]:.1f} %" for name in names)] for r in rows]
    text = f"{machine_line(facts)}\n\nShare of the time that the worker computes:\n\n"
    text += markdown_table(["streams", *headings], cells)
    (flags.output / "worker_busy.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
