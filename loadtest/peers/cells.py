"""The workloads of the comparison: the same prompts, lengths and streams for every server."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.peers.peer import Workload
from penstock_bench.load.options import EndControl, Length, LoadOptions


@dataclass(frozen=True)
class Cell(Workload):
    """`streams` closed-loop streams send `requests` requests in all, unless `seconds` are over
    first: what runs then is cut off, its tokens count, and the table says so."""

    name: str
    streams: int
    requests: int
    input_tokens: int
    output_tokens: int
    seconds: float
    warmup: int
    warmup_seconds: float = 5

    def options(self, url: str, end_control: EndControl) -> LoadOptions:
        return LoadOptions(
            url=url,
            concurrency=self.streams,
            requests=self.requests,
            max_time=self.seconds,
            warmup=self.warmup,
            warmup_time=self.warmup_seconds,
            input_tokens=Length.parse(str(self.input_tokens)),
            output_tokens=Length.parse(str(self.output_tokens)),
            end_control=end_control,
        )


# By ascending load: what an overloaded server still works on after a cell was cut off would
# disturb the next one.
CELLS = (
    Cell("1 stream, 32 in, 128 out", 1, 4, 32, 128, seconds=15, warmup=1),
    Cell("8 streams, 32 in, 128 out", 8, 24, 32, 128, seconds=15, warmup=2),
    Cell("64 streams, 128 in, 128 out", 64, 64, 128, 128, seconds=30, warmup=4),
    Cell("1,000 streams at once, 16 in, 16 out", 1000, 1000, 16, 16, seconds=45, warmup=8),
)
SMOKE_CELLS = (
    Cell("1 stream, 8 in, 8 out", 1, 2, 8, 8, seconds=20, warmup=1),
    Cell("4 streams, 8 in, 8 out", 4, 4, 8, 8, seconds=20, warmup=1),
)
