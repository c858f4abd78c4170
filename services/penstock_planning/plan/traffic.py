"""The requests that a plan is for: a trace's, or made ones, at any multiple of their rate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import msgspec

from penstock.errors import InvalidRequest
from penstock_planning.simulate.agents import agents, parse_agents
from penstock_planning.simulate.commands import AGENTS, SYNTHETIC, Synthetic, parse, synthetic
from penstock_planning.simulate.metrics import LatencyHistogram
from penstock_planning.simulate.trace import TraceRequest, read_trace

MOST_REQUESTS = 200_000
GROUPS = 8
"""Different beginnings that prompts share where a part of each is said to be shared."""


def check_requests(count: int) -> None:
    """Raises InvalidRequest for a number of requests that can't be simulated."""
    if not 1 <= count <= MOST_REQUESTS:
        raise InvalidRequest(
            f"--requests must be in 1 to {MOST_REQUESTS:,}, not {count:,}", param="requests"
        )


class PlanTraffic:
    """Gives the same requests each time it is asked, of which none is kept in memory.

    source: a trace's file, `synthetic:…`, `agents:…`, or traffic made from a rate.  most: requests
    of the source that count.  reuse: share of each prompt that others begin with, too; None: as
    the source has it.  Raises InvalidRequest where nothing can be read.
    """

    def __init__(
        self, source: str | Synthetic, most: int, reuse: float | None = None, seed: int = 0
    ) -> None:
        check_requests(most)
        self._source = source
        self._most = most
        self._reuse = reuse
        self._seed = seed
        self._prompts, self._outputs = LatencyHistogram(), LatencyHistogram()
        self.num_requests = self.num_tokens = 0
        """Requests, and tokens of their answers."""
        last = 0.0
        for request in self.requests():
            self._prompts.add(request.num_prompt)
            self._outputs.add(request.output_tokens)
            self.num_requests += 1
            self.num_tokens += request.output_tokens
            last = request.at
        if not self.num_requests:
            raise InvalidRequest(f"{self.name}: it holds no request")
        self.seconds = last
        """Seconds from the start to the last arrival."""

    @property
    def name(self) -> str:
        return self._source if isinstance(self._source, str) else "made"

    @property
    def is_made(self) -> bool:
        """Whether flags say how long prompts and answers are."""
        return isinstance(self._source, Synthetic)

    @property
    def rate(self) -> float:
        """Requests per second, on average."""
        if isinstance(self._source, Synthetic):
            return self._source.rate
        return self.num_requests / self.seconds if self.seconds else float(self.num_requests)

    def lengths(self) -> dict[str, float]:
        """Tokens: of prompts and of answers, at the median and the 95th percentile."""
        return {
            f"{name}_p{percent}": float(round(histogram.percentile(percent)))
            for name, histogram in (("prompt", self._prompts), ("output", self._outputs))
            for percent in (50, 95)
        }

    @property
    def counts(self) -> dict[str, int]:
        """How many values of each figure there are at most."""
        return {"ttft": self.num_requests, "e2e": self.num_requests, "itl": self.num_tokens}

    def with_reuse(self, reuse: float) -> PlanTraffic:
        return PlanTraffic(self._source, self._most, reuse, self._seed)

    def requests(self, load: float = 1.0, most: int | None = None) -> Iterator[TraceRequest]:
        """load: how many times as fast they arrive.  most: of them, if fewer than all."""
        rng = random.Random(f"{self._seed}/reuse")
        for request in itertools.islice(self._read(), min(most or self._most, self._most)):
            at = request.at / load
            if not self._reuse or not isinstance(request.prompt_tokens, int):
                yield msgspec.structs.replace(request, at=at)
                continue
            yield msgspec.structs.replace(
                request,
                at=at,
                prefix_group=rng.randrange(GROUPS),
                prefix_tokens=int(self._reuse * request.num_prompt),
            )

    def apart(self, most: int, seconds: float) -> Iterator[TraceRequest]:
        """The first of them, each long after the one before."""
        for number, request in enumerate(self.requests(1.0, most)):
            yield msgspec.structs.replace(request, at=number * seconds, session="", pause=0.0)

    def _read(self) -> Iterator[TraceRequest]:
        source = self._source
        if isinstance(source, Synthetic):
            return synthetic(source)
        if source.startswith(SYNTHETIC):
            return synthetic(parse(source.removeprefix(SYNTHETIC)))
        if source.startswith(AGENTS):
            return iter(agents(parse_agents(source.removeprefix(AGENTS))))
        return read_trace(source)
