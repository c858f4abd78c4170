"""One run from options to report."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, cast

from tqdm import tqdm

from penstock_bench.load.options import LoadOptions
from penstock_bench.load.reception import Reception
from penstock_bench.load.record import ErrorKind, RequestRecord
from penstock_bench.load.report import LoadReport, summarise
from penstock_bench.load.target import Target, TargetError
from penstock_bench.load.workload import LoadRequest, Workload, arrival_times


def run(
    options: LoadOptions,
    *,
    api_key: str | None = None,
    tls: ssl.SSLContext | None = None,
    progress: bool = True,
) -> LoadReport:
    """Warms up, measures, sums up.  tls: for https; None: trusts what the system trusts.

    Raises TargetError where the server can't be used: no model to name, or not one warm-up request
    that succeeds.
    """
    target = Target.from_url(options.url, api_key, tls)
    model = options.model or target.first_model()
    version = target.version()
    allow_many_sockets()
    started = datetime.datetime.now(datetime.UTC)
    cpu_before = time.process_time()
    with (
        tqdm(total=options.requests, unit="req", disable=not progress) as bar,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        load = LoadRun(target, Workload(options, model), options, _Progress(bar))
        runner.run(_warm_and_measure(load))
    return LoadReport(
        command=["penstock", *sys.argv[1:]],
        options=options,
        model=model,
        server_version=version,
        started=started,
        ended=datetime.datetime.now(datetime.UTC),
        generator_cpu_s=time.process_time() - cpu_before,
        warmup_errors=_errors(load.warmup_records),
        summary=summarise(load.records),
    )


class _Progress:
    """The bar counts ended requests and names the errors so far."""

    def __init__(self, bar: tqdm) -> None:
        self._bar = bar
        self._failed = 0

    def __call__(self, record: RequestRecord) -> None:
        if record.error is not None:
            self._failed += 1
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()


async def _warm_and_measure(load: LoadRun) -> None:
    await load.warm_up()
    failed = [record for record in load.warmup_records if record.error is not None]
    fatal = [record for record in failed if record.error != ErrorKind.CUT_OFF]
    if fatal and len(failed) == len(load.warmup_records):
        raise TargetError(
            f"every warm-up request failed, the first with {fatal[0].error}: "
            f"{fatal[0].error_detail}"
        )
    await load.measure()


def _errors(records: list[RequestRecord]) -> dict[str, int]:
    return dict(Counter(record.error for record in records if record.error is not None))


# Drives the requests: closed loop (N streams, each sends its next request when the last one
# ended) or open loop (requests leave at their times, whatever became of the others).

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


# Seconds that a server gets to end its response after [DONE]: closing at once would look to it
# like a client that left in mid-stream.
_LINGER = 1.0


class _StreamProtocol(asyncio.Protocol):
    def __init__(self, request: bytes, reception: Reception, done: asyncio.Future[None]) -> None:
        self._request = request
        self._reception = reception
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        reception = self._reception
        reception.feed(data, time.perf_counter())
        if reception.drained:
            self._close()
        elif reception.finished and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(_LINGER, self._close)

    def eof_received(self) -> bool:
        self._reception.end(time.perf_counter())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._reception.end(time.perf_counter())
        self._close()

    def _close(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        if not self._done.done():
            self._done.set_result(None)
        if self._transport is not None:
            self._transport.close()


async def send(
    target: Target,
    request: bytes,
    record: RequestRecord,
    *,
    timeout: float,
    exact_length: bool = False,
) -> None:
    """Sends `request`, fills `record`, and never raises but for cancellation.

    timeout: seconds from now to the answer's end. A cancelled request is recorded as CUT_OFF.
    """
    loop = asyncio.get_running_loop()
    reception = Reception(record, exact_length=exact_length)
    transport: asyncio.Transport | None = None
    record.sent = time.perf_counter()
    try:
        async with asyncio.timeout(timeout):
            done: asyncio.Future[None] = loop.create_future()
            transport, _ = await loop.create_connection(
                lambda: _StreamProtocol(request, reception, done),
                target.host,
                target.port,
                ssl=target.context,
            )
            await done
    except TimeoutError:
        if not reception.finished:
            late = ErrorKind.TIMEOUT_STREAM if record.arrivals else ErrorKind.TIMEOUT_FIRST
            record.fail(late, f"no end after {timeout:g} s")
    except OSError as error:
        record.fail(ErrorKind.CONNECT, repr(error))
    except asyncio.CancelledError:
        if not reception.finished:
            record.fail(ErrorKind.CUT_OFF, "the run's time was over")
        raise
    finally:
        reception.finished = True
        if record.ended is None:
            record.ended = time.perf_counter()
        if transport is not None:
            transport.abort()
