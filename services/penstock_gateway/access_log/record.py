"""What the access log says of one request, as it gathers."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

CLIENT_GONE = 499
"""nginx's status for a client that left before it had an answer."""


class AccessRecord:
    """One HTTP request, or one WebSocket. Seconds are since `begun`."""

    __slots__ = (
        "begun",
        "cached_tokens",
        "first_token",
        "model",
        "output_tokens",
        "prompt_tokens",
        "prompts",
        "status",
    )

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.status = CLIENT_GONE
        self.model: str | None = None
        """Name of the model that the prompts were for."""
        self.prompts = 0
        """Prompts that went to the engine."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.first_token: float | None = None

    def fields(self) -> dict[str, Any]:
        """Tokens and times, for the line; tokens of what went to the engine only."""
        found: dict[str, Any] = {"seconds": time.perf_counter() - self.begun}
        if self.first_token is not None:
            found["first_token_seconds"] = self.first_token
        if self.prompts:
            found["prompt_tokens"] = self.prompt_tokens
            found["cached_tokens"] = self.cached_tokens
            found["output_tokens"] = self.output_tokens
        return found


current: ContextVar[AccessRecord | None] = ContextVar("access_record", default=None)
"""Record of the request that is being handled; None where no line is written for it."""
