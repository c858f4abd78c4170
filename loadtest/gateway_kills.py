"""How long streams stand still when all gateways are killed under them, and their clients go on.

    python -m loadtest.gateway_kills                # 200 streams, three gateways, two kills
    python -m loadtest.gateway_kills --streams 40 --tokens 48

The same requests run twice: undisturbed, and with SIGKILL for all gateways at once. A stream's
silence around a moment is from its latest event before that to its next one. It is compared with
the silence around the same moments of the undisturbed run, as many streams share one processor.

What the engine core computed is counted, too: tokens of prompts and answers, also those that were
found in the KV cache, but no drafts that were wrong. By docs/guides/recovery.md a stream that goes
on within the grace period is computed once, and twice at most one of which no event with an id had
come, or that is recomputed. Exit code 1 where an answer differs, or more was computed than that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

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
from penstock.cli.http_client import HttpClient
from testing.serving import PATIENCE, Server, wait_until
from testing.streams.mix import Request, mix
from tests.metrics_page import PORTS, port_of, read_page

GATEWAYS = 3
MOMENTS = (0.3, 0.65)
"""When gateways are killed, as shares of the undisturbed run's time."""
SILENCE = 300.0
"""Seconds without an event after which a stream counts as lost."""


class Reading(HttpClient):
    """One stream: when its events came, in seconds since the run began, its answer, the tokens of
    that and of the prompt, and how often it went on from an event, or began anew as it had none
    with an id."""

    def __init__(self, url: str, request: Request, begun: float) -> None:
        super().__init__(url, None, SILENCE)
        self.times: list[float] = []
        self.resumed = self.begun_anew = self.tokens = 0
        self._asked = False
        said: dict[int, list[Any]] = defaultdict(lambda: ["", [], None])
        for event in self.resumed_events(request.path, request.body, SILENCE):
            self.times.append(time.monotonic() - begun)
            self.tokens = (event.get("usage") or {}).get("total_tokens", 0)
            for choice in event["choices"]:
                _add(said[choice["index"]], choice)
        self.answer = json.dumps(said, sort_keys=True)

    def _events(
        self, path: str, body: dict[str, Any], last: str | None
    ) -> Iterator[tuple[str | None, Any]]:
        self.resumed += last is not None
        self.begun_anew += last is None and self._asked
        self._asked = True
        return super()._events(path, body, last)

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


class Computed(NamedTuple):
    """What an engine core has computed since it started. needed: tokens in its steps, without
    drafts that were wrong and with prompt tokens that were found in the KV cache.  generated:
    tokens sampled.  adopted, recomputed: streams that went on with what was there, and that were
    computed again.  preempted: sequences, some of whose tokens are computed again."""

    needed: int
    generated: int
    adopted: int
    recomputed: int
    preempted: int

    @classmethod
    def until_now(cls, server: Server) -> Computed:
        """Waits until nothing runs any more, also nothing that nobody reads."""
        wait_until(lambda: _is_idle(server), PATIENCE)
        page = read_page(port_of(server, "engine"))

        def count(name: str) -> int:
            return int(sum(page.values(name)))

        drafted = count("vllm:spec_decode_num_draft_tokens_total")
        wrong = drafted - count("vllm:spec_decode_num_accepted_tokens_total")
        found = count("vllm:prefix_cache_hits_total")
        how = page.labelled("penstock:streams_resumed_total", "how")
        return cls(
            needed=count("vllm:iteration_tokens_total_sum") - wrong + found,
            generated=count("penstock:tenant_generation_tokens_total"),
            adopted=int(how["adopted"]),
            recomputed=int(how["recomputed"]),
            preempted=count("vllm:num_preemptions_total"),
        )

    def since(self, earlier: Computed) -> Document:
        """What each figure, by its name, has grown by."""
        return {
            name: now - before
            for name, now, before in zip(self._fields, self, earlier, strict=True)
        }


def _is_idle(server: Server) -> bool:
    engine = server.get("/status")[1]["engine"]
    return bool(engine["running"] == engine["waiting"] == 0)


def measure(flags: Flags) -> Document:
    """Silences of both runs, what was computed, and the requests whose answers differ."""
    requests = mix(flags.tokens, flags.streams)
    most = sum(request.choices for request in requests)
    serving = ["--gateways", str(GATEWAYS), "--max-num-seqs", str(most), *PORTS]
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
        begun = Computed.until_now(server)
        undisturbed, seconds, _ = run([])
        between = Computed.until_now(server)
        say(f"gateway_kills: {seconds:.0f} s; now with kills")
        disturbed, longer, moments = run([share * seconds for share in MOMENTS])
        ended = Computed.until_now(server)
    runs = {"undisturbed": undisturbed, "killed": disturbed}
    return {
        "streams": flags.streams,
        "tokens": flags.tokens,
        "seconds": {"undisturbed": seconds, "killed": longer},
        "computed": {"undisturbed": between.since(begun), "killed": ended.since(between)},
        "went_on": sum(each.resumed for each in disturbed),
        "begun_anew": sum(each.begun_anew for each in disturbed),
        "allowed": sum(each.begun_anew * each.tokens for each in disturbed)
        + (ended.recomputed - between.recomputed) * max(each.tokens for each in disturbed),
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
    rows = table(COLUMNS, document["silences"])
    parts = [machine_line(document), words, rows, _counted(document), verdict(faults(document))]
    return sections(parts)


def _excess(document: Document) -> int:
    once, again = (document["computed"][run]["needed"] for run in ("undisturbed", "killed"))
    return int(again - once)


def _counted(document: Document) -> str:
    """What was computed, in words."""
    once, again = (document["computed"][run] for run in ("undisturbed", "killed"))
    return (
        f"The engine core computed {once['needed']:,} tokens of prompts and answers in the "
        f"undisturbed run, of which {once['generated']:,} were sampled; {again['needed']:,} and "
        f"{again['generated']:,} in the other, so that {_excess(document):,} were computed twice, "
        f"and {document['allowed']:,} may be. Streams went on {document['went_on']} times from an "
        f"event: {again['adopted']} with what the engine core had gone on with, "
        f"{again['recomputed']} computed again. {document['begun_anew']} began anew, as they had "
        "no event with an id."
    )


def faults(document: Document) -> list[str]:
    """Answers that differ, and what was computed twice beyond what may be."""
    found = [f"{name} differs" for name in document["different"]]
    beyond = _excess(document) - document["allowed"]
    return found + ([f"{beyond:,} tokens too many were computed"] if beyond > 0 else [])


COMMAND = Measurement(
    "gateway_kills",
    __doc__,
    measure,
    markdown,
    {"--streams": (200, "at the same time"), "--tokens": (96, "of each answer")},
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
