"""How long streams stand still when all gateways are killed under them, and their clients go on.

    python -m loadtest.gateway_kills                # 200 streams, three gateways, two kills
    python -m loadtest.gateway_kills --streams 40 --tokens 48

The same requests run twice: undisturbed, and with SIGKILL for all gateways at once. A stream's
silence around a moment is from its latest event before that to its next one. It is compared with
the silence around the same moments of the undisturbed run, as many streams share one processor.
Exit code 1 where an answer differs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loadtest.report import (
    Document,
    Flags,
    Measurement,
    distribution,
    machine_line,
    say,
    sections,
    table,
    verdict,
)
from penstock import resumed_events
from testing.serving import PATIENCE, Server, wait_until
from testing.streams.mix import Request, mix

GATEWAYS = 3
MOMENTS = (0.3, 0.65)
"""When gateways are killed, as shares of the undisturbed run's time."""
SILENCE = 300.0
"""Seconds without an event after which a stream counts as lost."""


class Reading:
    """One stream: when its events came, in seconds since the run began, and its answer."""

    def __init__(self, url: str, request: Request, begun: float) -> None:
        self.times: list[float] = []
        said: dict[int, list[Any]] = defaultdict(lambda: ["", [], None])
        given = resumed_events(url, request.body, path=request.path, patience=SILENCE)
        for event in given:
            self.times.append(time.monotonic() - begun)
            for choice in event["choices"]:
                _add(said[choice["index"]], choice)
        self.answer = json.dumps(said, sort_keys=True)

    def silence_around(self, moment: float) -> float | None:
        """Seconds; None if the stream hadn't begun or had ended."""
        at = bisect_right(self.times, moment)
        return self.times[at] - self.times[at - 1] if 0 < at < len(self.times) else None


def _add(said: list[Any], choice: dict[str, Any]) -> None:
    """Adds text, log-probabilities and the reason of the end: events divide an answer anyhow."""
    said[0] += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    told = choice.get("logprobs") or {}
    said[1] += told.get("content") or told.get("token_logprobs") or []
    said[2] = choice.get("finish_reason") or said[2]


def measure(flags: Flags) -> Document:
    """Silences of both runs, and the requests whose answers differ."""
    requests = mix(flags.tokens, flags.streams)
    most = sum(request.choices for request in requests)
    serving = ["--gateways", str(GATEWAYS), "--max-num-seqs", str(most)]
    with Server(*serving) as server, ThreadPoolExecutor(flags.streams + 1) as pool:

        def run(wanted: list[float]) -> tuple[list[Reading], float, list[float]]:
            begun = time.monotonic()
            reading = [pool.submit(Reading, server.url, each, begun) for each in requests]
            moments = []
            for moment in wanted:
                # A moment is a share of the undisturbed run's time: there is no state to wait for.
                time.sleep(max(0.0, begun + moment - time.monotonic()))
                moments.append(_kill_gateways(server) - begun)
            return [each.result() for each in reading], time.monotonic() - begun, moments

        say(f"gateway_kills: {flags.streams} streams, undisturbed")
        undisturbed, seconds, _ = run([])
        say(f"gateway_kills: {seconds:.0f} s; now with kills")
        disturbed, longer, moments = run([share * seconds for share in MOMENTS])
    runs = {"undisturbed": undisturbed, "killed": disturbed}
    return {
        "streams": flags.streams,
        "tokens": flags.tokens,
        "seconds": {"undisturbed": seconds, "killed": longer},
        "silences": [
            {"run": name, "moment": number, **_silences(readings, moment)}
            for number, moment in enumerate(moments, 1)
            for name, readings in runs.items()
        ],
        "different": [
            request.name
            for request, one, other in zip(requests, undisturbed, disturbed, strict=True)
            if one.answer != other.answer
        ],
    }


def _silences(readings: list[Reading], moment: float) -> dict[str, float]:
    found = (each.silence_around(moment) for each in readings)
    return distribution(each for each in found if each is not None)


def _kill_gateways(server: Server) -> float:
    """Returns when others have taken their places, with the time of the kill."""
    names = [f"gateway {number}" for number in range(GATEWAYS)]
    killed = {server.child(name) for name in names}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    moment = time.monotonic()
    wait_until(lambda: not killed & set(server.processes().values()), PATIENCE)
    wait_until(lambda: set(names) <= set(server.processes()), PATIENCE)
    return moment


COLUMNS = {
    "moment": "{moment}",
    "run": "{run}",
    "streams": "{count}",
    "p50, s": "{p50:.2f}",
    "p90, s": "{p90:.2f}",
    "p99, s": "{p99:.2f}",
    "longest, s": "{max:.2f}",
}


def markdown(document: Document) -> str:
    seconds = document["seconds"]
    words = (
        f"{document['streams']} mixed streams of {document['tokens']} tokens by the default model, "
        f"{GATEWAYS} gateways, all of which are killed at once at each moment. The undisturbed run "
        f"took {seconds['undisturbed']:.0f} s, the other {seconds['killed']:.0f} s. Silence of the "
        "streams that were open at a moment, from their latest event before it to the next one:"
    )
    wrong = [f"{name} differs" for name in document["different"]]
    rows = table(COLUMNS, document["silences"])
    return sections([machine_line(document), words, rows, verdict(wrong)])


COMMAND = Measurement(
    "gateway_kills",
    __doc__,
    measure,
    markdown,
    {"--streams": (200, "at the same time"), "--tokens": (96, "of each answer")},
    faults=lambda document: document["different"],
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
