"""What API keys may use: requests and tokens a minute.

The minute is counted in this process, or in Redis by the `limits` library.

A sliding window of a minute: the count of the running minute, and the part of the one before that
is less than a minute ago.  A request is counted when it arrives.  The tokens of its prompt are
counted before it is submitted, and it is refused where they don't fit; the tokens of its output are
counted when it has ended, however it ended.  So nobody pays for output that max_tokens allowed and
that never came; a key may overdraw by the output of what it has running, and waits that much
longer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.observer import RequestObserver
from penstock.process import logs
from penstock.request.api_keys import TENANT_DIGITS, ApiKey
from penstock_gateway.http.errors import HTTPError, unavailable
from penstock_gateway.keys.ring import Caller, current

if TYPE_CHECKING:
    from limits.aio.storage import RedisStorage

    from penstock.client.observer import ObservedRequest

log = logs.get(__name__)

MINUTE = 60
STORAGE_PATIENCE = 2.0
"""Seconds that Redis may take to answer."""
NO_LIMIT = 2**52
"""Stands for no limit where something is counted come what may; Lua counts in doubles."""


class Window(NamedTuple):
    """What a key has used in the running minute and in the one before."""

    before: int
    """What was used in the minute before the running one."""
    before_left: float
    """Seconds of the minute before that still count."""
    now: int
    """What has been used in the running minute."""
    left: float
    """Seconds that the running minute has left."""

    @property
    def used(self) -> int:
        return math.floor(self.before * self.before_left / MINUTE) + self.now

    def seconds_until(self, used: int) -> float:
        """Seconds until no more than `used` counts as used, if nothing is added."""
        over = self.before * self.before_left / MINUTE + self.now - used
        if over <= 0:
            return 0.0
        if self.now <= used:
            return over * MINUTE / self.before
        return self.left + MINUTE * (1 - max(used, 0) / self.now)


class ProcessWindows:
    """Counts of this process, as the library's storages have them, by a clock that nobody sets."""

    def __init__(self) -> None:
        self._minutes: dict[float, Counter[str]] = {}
        """The running one, and the one before."""

    async def acquire_sliding_window_entry(
        self, name: str, limit: int, expiry: int, amount: int
    ) -> bool:
        """Counts so many more, if the limit allows that."""
        before, before_left, now, _ = await self.get_sliding_window(name, expiry)
        if math.floor(before * before_left / expiry) + now + amount > limit:
            return False
        self._minutes[max(self._minutes)][name] += amount
        return True

    async def get_sliding_window(self, name: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns (use in the minute before, seconds for which that still counts, use in the
        running minute, seconds that it has left), as in Window."""
        number, passed = divmod(time.monotonic(), expiry)
        kept = {each: self._minutes.get(each, Counter()) for each in (number - 1, number)}
        self._minutes = kept
        left = expiry - passed
        return kept[number - 1][name], left, kept[number][name], left


class RateLimits:
    """Counts for all keys. Raises HTTPError 503 where Redis doesn't answer: a limit that may have
    been reached is held, for the other tenants were promised it."""

    def __init__(self, uri: str = "memory") -> None:
        self._storage = _storage(uri)
        self._settling: set[asyncio.Task[None]] = set()

    async def arrived(self, caller: Caller, *, counted: bool) -> None:
        """A request has come. Raises HTTPError 429. counted: against the requests a minute."""
        key = caller.key
        if key is None:
            return
        if key.requests_per_minute is not None:
            await self._take(caller, key, "requests", key.requests_per_minute, 1 if counted else 0)
        if key.tokens_per_minute is not None:
            await self._take(caller, key, "tokens", key.tokens_per_minute, 0)

    async def prompt(self, caller: Caller, tokens: int) -> None:
        """A prompt is about to be submitted. Raises HTTPError 429."""
        key = caller.key
        if key is not None and key.tokens_per_minute is not None:
            await self._take(caller, key, "tokens", key.tokens_per_minute, tokens)

    def output(self, caller: Caller, tokens: int) -> None:
        """A request has ended. Counted in the background: nobody waits for it."""
        key = caller.key
        if key is None or key.tokens_per_minute is None or not tokens:
            return
        task = asyncio.get_running_loop().create_task(self._settle(key, tokens))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, key: ApiKey, tokens: int) -> None:
        try:
            await self._add(_name(key, "tokens"), NO_LIMIT, tokens)
        except Exception as error:
            log.warning("tokens were not counted", key=key.name, tokens=tokens, reason=repr(error))

    async def _take(self, caller: Caller, key: ApiKey, what: str, limit: int, amount: int) -> None:
        """Counts `amount` and tells the caller how it stands. Raises HTTPError 429 or 503."""
        name = _name(key, what)
        try:
            taken = not amount or await self._add(name, limit, amount)
            window = await self._window(name)
        except Exception as error:
            log.error("the storage of rate limits failed", key=key.name, reason=repr(error))
            raise unavailable(
                "this API key's limits can't be checked at the moment: their storage doesn't "
                "answer",
                "rate_limits_unavailable",
                1,
            ) from None
        if taken:
            _tell(caller, what, limit, window, window.seconds_until(0))
            return
        wait = max(1, math.ceil(window.seconds_until(max(0, limit - amount))))
        _tell(caller, what, limit, window, wait)
        raise _refusal(what, limit, amount, window, wait)

    async def _add(self, name: str, limit: int, amount: int) -> bool:
        async with asyncio.timeout(STORAGE_PATIENCE):
            return await self._storage.acquire_sliding_window_entry(name, limit, MINUTE, amount)

    async def _window(self, name: str) -> Window:
        async with asyncio.timeout(STORAGE_PATIENCE):
            before, before_left, now, left = await self._storage.get_sliding_window(name, MINUTE)
        # The library keeps a count for two minutes, and says when that is over.
        return Window(before, before_left, now, left - MINUTE if left > MINUTE else left)


def _storage(uri: str) -> ProcessWindows | RedisStorage:
    if uri == "memory":
        return ProcessWindows()
    # Only a gateway that needs it pays for loading it.
    from limits.aio.storage import RedisStorage

    return RedisStorage(
        f"async+{uri}",
        implementation="redispy",
        key_prefix="PENSTOCK",
        socket_timeout=STORAGE_PATIENCE,
        socket_connect_timeout=STORAGE_PATIENCE,
    )


def _name(key: ApiKey, what: str) -> str:
    return f"{what}/{key.sha256[:TENANT_DIGITS].lower()}"


def _tell(caller: Caller, what: str, limit: int, window: Window, reset: float) -> None:
    """OpenAI's headers. reset: seconds until nothing is used any more; of a request that is
    refused, until it would be let in, as its Retry-After says. Written as OpenAI does: 1m5s."""
    minutes, seconds = divmod(math.ceil(reset), MINUTE)
    caller.limit_headers |= {
        f"x-ratelimit-limit-{what}".encode(): b"%d" % limit,
        f"x-ratelimit-remaining-{what}".encode(): b"%d" % max(0, limit - window.used),
        f"x-ratelimit-reset-{what}".encode(): (f"{minutes}m" if minutes else "").encode()
        + b"%ds" % seconds,
    }


def _refusal(what: str, limit: int, amount: int, window: Window, wait: int) -> HTTPError:
    """wait: seconds."""
    if amount > limit:
        # Without Retry-After: no time makes room for it.
        message = f"the prompt has {amount} tokens; this API key may use {limit} per minute"
        headers: tuple[tuple[str, str], ...] = ()
    else:
        headers = (("retry-after", str(wait)),)
        message = f"this API key may use {limit} {what} per minute and has used {window.used}"
        message += f"; this request needs {amount}" if amount > 1 else ""
    return HTTPError(
        429,
        message,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers=headers,
    )


class RateLimitObserver:
    """Asks the limits before a prompt is submitted, and charges the output when it has ended."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits

    def request(self, prompt_tokens: int) -> RequestObserver:
        return _Charge(self._limits, current.get(), prompt_tokens)


class _Charge(RequestObserver):
    def __init__(self, limits: RateLimits, caller: Caller, prompt_tokens: int) -> None:
        self._limits = limits
        self._caller = caller
        self._prompt_tokens = prompt_tokens

    async def admit(self) -> None:
        """Raises HTTPError 429 or 503."""
        await self._limits.prompt(self._caller, self._prompt_tokens)

    def ended(self, request: ObservedRequest) -> None:
        self._limits.output(self._caller, request.generated_tokens)
