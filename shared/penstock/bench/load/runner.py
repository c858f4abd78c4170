"""Drives the requests: closed loop (N streams, each sends its next request when the last one
ended) or open loop (requests leave at their times, whatever became of the others)."""

from __future__ import annotations

import asyncio
import itertools
import resource
import time
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.bench.load.connection import send
from penstock.bench.load.options import LoadOptions
from penstock.bench.load.record import ErrorKind, RequestRecord
from penstock.bench.load.target import Target
from penstock.bench.load.workload import LoadRequest, Workload, arrival_times

OnEnd = Callable[[RequestRecord], None]


class LoadRun:
    """One run against one server. `records` fills while it runs, in the order of sending."""

    def __init__(
        self,
        target: Target,
        workload: Workload,
        options: LoadOptions,
        on_end: OnEnd = lambda record: None,
    ) -> None:
        self.records: list[RequestRecord] = []
        self.warmup_records: list[RequestRecord] = []
        self._target = target
        self._workload = workload
        self._options = options
        self._on_end = on_end
        self._start = 0.0
        self._in_flight: set[asyncio.Task[None]] = set()

    async def warm_up(self) -> None:
        """Sends the warm-up requests, as many at a time as the closed loop would."""
        indices = iter(range(-1, -self._options.warmup - 1, -1))

        async def stream() -> None:
            for index in indices:
                request = self._workload.request(index)
                record = self._record(request, time.perf_counter(), self.warmup_records)
                await self._send(request, record)

        streams = min(self._options.concurrency, self._options.warmup)
        warm_up = self._together([stream() for _ in range(streams)])
        await self._bounded(warm_up, self._options.warmup_time)

    async def measure(self) -> None:
        """Runs the workload; returns when every request ended or the time was over."""
        loop = self._closed() if self._options.rate is None else self._open()
        self._start = time.perf_counter()
        await self._bounded(loop, self._options.max_time)

    async def _closed(self) -> None:
        indices = iter(range(self._options.requests))

        async def stream() -> None:
            for index in indices:
                request = self._workload.request(index)
                now = time.perf_counter()
                if self._over(now - self._start):
                    return
                record = self._record(request, now, self.records)
                await self._send(request, record)
                self._on_end(record)

        streams = min(self._options.concurrency, self._options.requests)
        await self._together([stream() for _ in range(streams)])

    async def _open(self) -> None:
        due_times = itertools.islice(arrival_times(self._options), self._options.requests)
        for index, due in enumerate(due_times):
            if self._over(due):
                break
            request = self._workload.request(index)
            intended = self._start + due
            delay = intended - time.perf_counter()
            # A late request leaves at once; yielding lets what arrived be read first.
            await asyncio.sleep(max(delay, 0))
            record = self._record(request, intended, self.records)
            if len(self._in_flight) >= self._options.max_in_flight:
                record.fail(ErrorKind.NOT_SENT, f"{len(self._in_flight)} in flight")
                record.ended = time.perf_counter()
                self._on_end(record)
            else:
                self._spawn(self._send_one(request, record))
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    async def _send_one(self, request: LoadRequest, record: RequestRecord) -> None:
        await self._send(request, record)
        self._on_end(record)

    async def _send(self, request: LoadRequest, record: RequestRecord) -> None:
        head = self._target.head(self._workload.path, len(request.body))
        await send(
            self._target,
            head + request.body,
            record,
            timeout=self._options.timeout,
            exact_length=self._options.exact_length,
        )

    def _record(
        self, request: LoadRequest, intended: float, records: list[RequestRecord]
    ) -> RequestRecord:
        record = RequestRecord(request.index, request.output_tokens, intended)
        records.append(record)
        return record

    def _over(self, elapsed: float) -> bool:
        return self._options.duration is not None and elapsed >= self._options.duration

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _together(self, coroutines: list[Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)

    async def _bounded(self, coroutine: Coroutine[Any, Any, None], seconds: float | None) -> None:
        """Runs it for so long at most; what is in flight then is recorded as cut off."""
        try:
            async with asyncio.timeout(seconds):
                await coroutine
        except TimeoutError:
            pass
        finally:
            for task in list(self._in_flight):
                task.cancel()
            await asyncio.gather(*self._in_flight, return_exceptions=True)


def allow_many_sockets() -> None:
    """Raises this process's limit of open files to what the system lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed: it costs about half."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
