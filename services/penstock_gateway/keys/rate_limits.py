"""What API keys may use: requests and tokens a minute.

The minute is counted in this process, or in Redis by the `limits` library.

A request is counted when it arrives.  The tokens of its prompt are counted before it is submitted,
and it is refused where they don't fit; the tokens of its output are counted when it has ended,
however it ended.  So nobody pays for output that max_tokens allowed and that never came; a key may
overdraw by the output of what it has running, and waits that much longer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.client.observer import RequestObserver
from penstock.request.api_keys import TENANT_DIGITS, ApiKey
from penstock_gateway.http.errors import HTTPError, unavailable
from penstock_gateway.keys.ring import Caller, current
from penstock_gateway.keys.shared_windows import Fallback, SharedWindows
from penstock_gateway.keys.windows import (
    MINUTE,
    LimitCheck,
    LimitState,
    ProcessWindows,
    RateWindows,
    StorageDown,
    Window,
)

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest
    from penstock_gateway.keys.redis_windows import PipelinedClient

STORAGE_PATIENCE = 2.0
"""Seconds that Redis may take to answer, by default."""


class RateLimits:
    """Counts for all keys. Raises HTTPError 503 where Redis doesn't answer, unless each gateway is
    to count for itself then (`fallback`): a limit that may have been reached is held, for the other
    tenants were promised it.

    uri: `memory`, or of Redis.  patience: seconds that Redis may take to answer.
    """

    def __init__(
        self,
        uri: str = "memory",
        *,
        patience: float = STORAGE_PATIENCE,
        fallback: Fallback = "refuse",
    ) -> None:
        self.shared: SharedWindows | None = None
        """Windows in Redis; None where this process counts by itself."""
        self.client: PipelinedClient | None = None
        """The client of Redis; None where this process counts by itself."""
        self._windows: RateWindows = ProcessWindows()
        if uri != "memory":
            # Only a gateway that needs it pays for loading it.
            from penstock_gateway.keys.redis_windows import RedisWindows

            storage = RedisWindows(uri, patience)
            self.client = storage.client
            self._windows = self.shared = SharedWindows(storage, fallback)

    async def arrived(self, caller: Caller, *, counted: bool) -> None:
        """A request has come. Raises HTTPError 429. counted: against the requests a minute."""
        key = caller.key
        if key is None:
            return
        checks = {}
        if key.requests_per_minute is not None:
            amount = 1 if counted else 0
            checks["requests"] = LimitCheck(_name(key, "requests"), key.requests_per_minute, amount)
        if key.tokens_per_minute is not None:
            checks["tokens"] = LimitCheck(_name(key, "tokens"), key.tokens_per_minute, 0)
        await self._check(caller, checks)

    async def prompt(self, caller: Caller, tokens: int) -> None:
        """A prompt is about to be submitted. Raises HTTPError 429."""
        key = caller.key
        if key is not None and key.tokens_per_minute is not None:
            check = LimitCheck(_name(key, "tokens"), key.tokens_per_minute, tokens)
            await self._check(caller, {"tokens": check})

    def output(self, caller: Caller, tokens: int) -> None:
        """A request has ended. Counted in the background: nobody waits for it."""
        key = caller.key
        if key is not None and key.tokens_per_minute is not None and tokens:
            self._windows.add(_name(key, "tokens"), tokens)

    async def close(self) -> None:
        """Counts what has ended just now."""
        await self._windows.close()

    async def _check(self, caller: Caller, checks: dict[str, LimitCheck]) -> None:
        """Counts, and tells the caller how it stands. checks: by what they are of. Raises HTTPError
        429 or 503."""
        if not checks:
            return
        try:
            states = await self._windows.check(list(checks.values()))
        except StorageDown:
            raise unavailable(
                "this API key's limits can't be checked at the moment: their storage doesn't "
                "answer",
                "rate_limits_unavailable",
                1,
            ) from None
        for what, state in zip(checks, states, strict=True):
            _judge(caller, what, checks[what], state)


def _judge(caller: Caller, what: str, check: LimitCheck, state: LimitState) -> None:
    """Tells the caller how it stands. Raises HTTPError 429."""
    _, limit, amount = check
    window = state.window
    if state.allowed:
        _tell(caller, what, limit, window, window.seconds_until(0))
        return
    wait = max(1, math.ceil(window.seconds_until(max(0, limit - amount))))
    _tell(caller, what, limit, window, wait)
    raise _refusal(what, limit, amount, window, wait)


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
