"""The metrics of a simulated run: counts, latencies with percentiles in fixed memory, and a digest
of when everything happened."""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter

from penstock.protocol.to_frontend import Outputs, SequenceOutput

RESOLUTION = 0.01
"""Width of a bucket, as a share of the value: what a percentile may be off by."""

LEAST, MOST = 1e-5, 1e7
_SCALE = 1 / math.log1p(RESOLUTION)
_BUCKETS = int(math.log(MOST / LEAST) * _SCALE) + 2


class LatencyHistogram:
    """A histogram of seconds, from 10 µs up; less counts as 10 µs."""

    __slots__ = ("count", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.count = 0
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[_bucket(value)] += times
        self.count += times
        self.total += value * times

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def above(self, value: float) -> int:
        """How many are larger for certain: by more than a bucket's width, at most."""
        return sum(self.counts[_bucket(value) + 1 :])

    def percentile(self, percent: float) -> float:
        """NaN of nothing."""
        if not self.count:
            return math.nan
        rank = max(1, math.ceil(self.count * percent / 100))
        passed = 0
        for at, count in enumerate(self.counts):
            passed += count
            if passed >= rank:
                return middle(at)
        return MOST

    def curve(self) -> list[tuple[float, float]]:
        """(value, share of values up to it), for drawing."""
        points, passed = [], 0
        for at, count in enumerate(self.counts):
            if count:
                passed += count
                points.append((middle(at), passed / self.count))
        return points


def _bucket(value: float) -> int:
    at = int(math.log(value / LEAST) * _SCALE) + 1 if value > LEAST else 0
    return min(at, _BUCKETS - 1)


def middle(bucket: int) -> float:
    """The value that stands for a bucket."""
    return LEAST if bucket == 0 else float(LEAST * math.exp((bucket - 0.5) / _SCALE))


MAX_TENANTS = 64
"""Tenants whose latencies are reported separately; further ones share the last place."""

OTHERS = "(others)"

_ENDED = struct.Struct("<qddq")


class Slo:
    """Seconds: to the first token, and between tokens on average. A request meets both or fails."""

    __slots__ = ("itl", "ttft")

    def __init__(self, ttft: float, itl: float) -> None:
        self.ttft = ttft
        self.itl = itl

    def met(self, ttft: float, itl: float) -> bool:
        return ttft <= self.ttft and itl <= self.itl


class Open:
    """A request that is under way. first, last: times of its first and latest token."""

    __slots__ = (
        "arrival",
        "cached",
        "first",
        "last",
        "priority",
        "prompt",
        "session",
        "tenant",
        "tokens",
    )

    def __init__(
        self, arrival: float, prompt: int, tenant: str, priority: int = 0, session: str = ""
    ) -> None:
        self.arrival = arrival
        self.prompt = prompt
        self.tenant = tenant
        self.priority = priority
        self.session = session
        self.first = self.last = 0.0
        self.tokens = 0
        self.cached = 0


class TenantLatencies:
    """The latencies of one tenant's requests."""

    __slots__ = ("cached_tokens", "completed", "e2e", "output_tokens", "prompt_tokens", "ttft")

    def __init__(self) -> None:
        self.completed = 0
        self.prompt_tokens = self.cached_tokens = 0
        self.output_tokens = 0
        self.ttft = LatencyHistogram()
        self.e2e = LatencyHistogram()


class Metrics:
    """The simulation calls `rejected`, `ended` and `outputs` as they happen.

    A cached token is one that the core says it found in its prefix index.
    """

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self.submitted = 0
        self.rejected = 0
        self.met = 0
        self.finishes: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.ttft, self.itl, self.e2e = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
        self.tenants: dict[str, TenantLatencies] = {}
        self.series = Series()
        self.last = 0.0
        self._digest = hashlib.blake2b(digest_size=16)

    def outputs(self, message: Outputs, requests: dict[int, Open], now: float) -> list[int]:
        """What one step gave; returns the requests that ended. Runs once a token: keep it lean."""
        ended: list[int] = []
        gap, same, total = 0.0, 0, 0
        for output in message.outputs:
            request = requests[output.request]
            count = len(output.tokens)
            if count:
                total += count
                if request.tokens:
                    # Most sequences of a step had their last token from the step before.
                    since = (now - request.last) / count
                    if since != gap:
                        if same:
                            self.itl.add(gap, same)
                        gap, same = since, 0
                    same += count
                else:
                    request.first = now
                    request.cached = _cached(output)
                    self.ttft.add(now - request.arrival)
                request.last = now
                request.tokens += count
            if output.finish is not None:
                self._end(output, request, now)
                ended.append(output.request)
        if same:
            self.itl.add(gap, same)
        self.output_tokens += total
        self.series.add(now, total, len(requests))
        return ended

    def _end(self, output: SequenceOutput, request: Open, now: float) -> None:
        self.finishes[str(output.finish)] += 1
        self.prompt_tokens += request.prompt
        self.cached_tokens += max(request.cached, _cached(output))
        self.e2e.add(now - request.arrival)
        self.last = now
        if request.tokens and output.finish in ("stop", "length"):
            itl = (request.last - request.first) / max(1, request.tokens - 1)
            self.met += self.slo.met(request.first - request.arrival, itl)
            self._tenant(request, now)
        ended = _ENDED.pack(output.request, request.first, now, request.tokens)
        self._digest.update(ended + str(output.finish).encode())

    def _tenant(self, request: Open, now: float) -> None:
        if not request.tenant:
            return
        name = request.tenant
        if name not in self.tenants and len(self.tenants) >= MAX_TENANTS:
            name = OTHERS
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = TenantLatencies()
        tenant.completed += 1
        tenant.prompt_tokens += request.prompt
        tenant.cached_tokens += request.cached
        tenant.output_tokens += request.tokens
        tenant.ttft.add(request.first - request.arrival)
        tenant.e2e.add(now - request.arrival)

    def refuse(self, number: int, now: float) -> None:
        """The core refused it, and it is not sent again."""
        self.rejected += 1
        self._digest.update(_ENDED.pack(number, -1.0, now, 0))

    def digest(self) -> str:
        """Digest of every request's end and its time: equal runs have equal ones."""
        return self._digest.hexdigest()


def _cached(output: SequenceOutput) -> int:
    """Prompt tokens that came from the prefix index, where the core tells."""
    return int(getattr(output, "cached_tokens", None) or 0)


MOST_BINS = 512


class Series:
    """Bins of equal width; when there are too many, neighbours are joined and the width doubles.

    width: seconds.  sums: of what was added.  peaks: the largest level that was shown.
    """

    __slots__ = ("peaks", "sums", "width")

    def __init__(self) -> None:
        self.width = 1.0
        self.sums: list[int] = []
        self.peaks: list[int] = []

    def add(self, at: float, amount: int, level: int) -> None:
        index = int(at / self.width)
        while index >= MOST_BINS:
            self._join()
            index = int(at / self.width)
        sums, peaks = self.sums, self.peaks
        while len(sums) <= index:
            sums.append(0)
            peaks.append(0)
        sums[index] += amount
        if level > peaks[index]:
            peaks[index] = level

    def _join(self) -> None:
        self.sums = [sum(self.sums[at : at + 2]) for at in range(0, len(self.sums), 2)]
        self.peaks = [max(self.peaks[at : at + 2]) for at in range(0, len(self.peaks), 2)]
        self.width *= 2
