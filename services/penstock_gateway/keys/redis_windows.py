"""Windows in Redis, by the `limits` library, whose scripts go there in pipelines.

The library asks for one script at a time, and would wait for each answer.  Here it asks a client
that sends what was asked in one turn of the event loop as one pipeline: so a request makes one
round trip for all of its limits, and requests that come at the same time share it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, NamedTuple

from limits.aio.storage import RedisStorage
from limits.errors import ConfigurationError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from penstock.errors import StartupError
from penstock.metrics.histogram import Histogram
from penstock_gateway.keys.shared_windows import CountFailed
from penstock_gateway.keys.windows import MINUTE, NO_LIMIT, LimitCheck, LimitState, Window

CONNECTIONS = 4
"""Pipelines that are under way at once, each on a connection of its own. While all of them are,
what is asked waits, and goes together."""
CONNECT_SECONDS = 1.0
"""How long Redis may take to accept a connection and answer on it, even where answers must come
sooner: else it would never come back."""
MOST_COMMANDS = 1024
"""Commands of one pipeline."""
ROUND_TRIPS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


OUTAGES = (
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
"""Answers that are errors of the whole Redis, not of one key."""
OUTAGE_WORDS = ("MISCONF", "NOREPLICAS", "BUSY", "READONLY", "OOM")
"""So are those with one of these words, which the client has no class for, or not in a script."""


class _Asked(NamedTuple):
    """A command, and who waits for its answer, since when."""

    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]
    since: float


class PipelinedClient:
    """What the library's scripts need of a client of Redis. patience: seconds that an answer may
    take, with the time that the command waited to be sent."""

    def __init__(self, client: Redis, patience: float) -> None:
        self.connection_pool = client.connection_pool
        self.round_trips = Histogram(ROUND_TRIPS)
        """Seconds that pipelines took which were answered."""
        self.failures = 0
        """Pipelines without an answer, and answers that were errors."""
        self._client = client
        self._patience = patience
        self._asked: deque[_Asked] = deque()
        self._called = False
        self._is_connected = False
        self._running: set[asyncio.Task[None]] = set()

    def register_script(self, script: str) -> AsyncScript:
        """A script that is sent by its digest, and as a text where Redis doesn't know it."""
        return AsyncScript(self, script)

    async def evalsha(self, *arguments: Any) -> Any:
        """Runs a script that Redis knows. Raises RedisError, NoScriptError where it doesn't."""
        return await self._ask("EVALSHA", *arguments)

    async def script_load(self, script: str) -> Any:
        return await self._ask("SCRIPT LOAD", script)

    async def close(self) -> None:
        await self._client.aclose()

    def _ask(self, *arguments: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        asked = _Asked(arguments, loop.create_future(), loop.time())
        self._asked.append(asked)
        if not self._called and len(self._running) < CONNECTIONS:
            self._called = True
            loop.call_soon(self._send)
        return asked.answer

    def _send(self) -> None:
        """Sends what was asked in this turn, as far as there is a connection for it."""
        self._called = False
        while self._asked and len(self._running) < CONNECTIONS:
            batch = [self._asked.popleft() for _ in range(min(len(self._asked), MOST_COMMANDS))]
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._send()

    async def _run(self, batch: list[_Asked]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for asked in batch:
            pipeline.execute_command(*asked.arguments)
        begun = time.perf_counter()
        try:
            async with asyncio.timeout_at(batch[0].since + self._seconds()):
                answers = await pipeline.execute(raise_on_error=False)
        except Exception as error:
            answers = [error] * len(batch)
            self.failures += 1
            self._is_connected = False
        else:
            self._is_connected = True
            self.round_trips.observe(time.perf_counter() - begun)
            self.failures += any(_is_failure(answer) for answer in answers)
        _give(batch, answers)

    def _seconds(self) -> float:
        """How long a pipeline may take now."""
        return self._patience if self._is_connected else max(self._patience, CONNECT_SECONDS)


def _give(batch: list[_Asked], answers: list[Any]) -> None:
    for asked, answer in zip(batch, answers, strict=True):
        if asked.answer.done():  # Nobody waits any more.
            continue
        if isinstance(answer, Exception):
            asked.answer.set_exception(answer)
        else:
            asked.answer.set_result(answer)


def _is_failure(answer: object) -> bool:
    return isinstance(answer, Exception) and not isinstance(answer, NoScriptError)


class RedisWindows:
    """uri: redis://, rediss:// or redis+unix://.  patience: seconds for an answer.  Raises
    StartupError for an address that is none."""

    def __init__(self, uri: str, patience: float) -> None:
        try:
            storage = RedisStorage(
                f"async+{uri}",
                implementation="redispy",
                key_prefix="PENSTOCK",
                socket_connect_timeout=max(patience, CONNECT_SECONDS),
                # The client's pipelines have a bound of their own; by itself it would have 5 s.
                socket_timeout=None,  # type: ignore[arg-type]
                # Who asks decides what a failure means; a script that is sent twice counts twice.
                retry=Retry(NoBackoff(), 0),
            )
        except (ConfigurationError, ValueError):
            # Not with the reason, which may hold a password.
            raise StartupError(
                "--rate-limit-storage: this is no address of a Redis; allowed: "
                "redis://[USER:PASSWORD@]HOST:PORT/DB, rediss://…, redis+unix://PATH"
            ) from None
        bridge: Any = storage.bridge
        self.client = PipelinedClient(bridge.get_connection(), patience)
        bridge.connection_getter = lambda _: self.client
        bridge.register_scripts()
        self._storage = storage

    async def check(self, checks: Sequence[LimitCheck]) -> list[LimitState]:
        """A state for each check, in one round trip. Raises an exception of the client where Redis
        doesn't answer, and CountFailed where it has an error for one of the keys."""
        storage = self._storage
        waits: list[Awaitable[Any]] = []
        for name, limit, amount in checks:
            if amount:
                waits.append(storage.acquire_sliding_window_entry(name, limit, MINUTE, amount))
            waits.append(storage.get_sliding_window(name, MINUTE))
        got = await asyncio.gather(*waits, return_exceptions=True)
        errors = [_error(each) for each in got if isinstance(each, BaseException)]
        if errors:
            raise min(errors, key=lambda each: isinstance(each, CountFailed))
        answers: Iterator[Any] = iter(got)
        return [
            LimitState(not check.amount or next(answers), _window(*next(answers)))
            for check in checks
        ]

    async def add(self, amounts: dict[str, int]) -> dict[str, Exception]:
        """Counts them come what may, in one round trip. Returns the errors, by name."""
        take = self._storage.acquire_sliding_window_entry
        waits = (take(name, NO_LIMIT, MINUTE, amount) for name, amount in amounts.items())
        got = await asyncio.gather(*waits, return_exceptions=True)
        return {
            name: _error(each)
            for name, each in zip(amounts, got, strict=True)
            if isinstance(each, BaseException)
        }

    async def close(self) -> None:
        await self.client.close()


def _error(error: BaseException) -> Exception:
    """CountFailed for what is wrong with one key only."""
    if isinstance(error, AskError):  # MOVED is one, too.
        return CountFailed(
            "Redis is a cluster, which isn't supported: --rate-limit-storage needs a Redis that "
            "keeps all keys"
        )
    if not isinstance(error, Exception):
        raise error
    is_outage = isinstance(error, OUTAGES) or any(word in str(error) for word in OUTAGE_WORDS)
    if is_outage or not isinstance(error, ResponseError):
        return error
    return CountFailed(f"Redis has an error for its key: {error}")


def _window(before: int, before_left: float, now: int, left: float) -> Window:
    # The library keeps a count for two minutes, and says when that is over.
    return Window(before, before_left, now, left - MINUTE if left > MINUTE else left)
