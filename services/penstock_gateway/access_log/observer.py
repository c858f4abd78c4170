"""Tells a request's record what became of its prompts in the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.client.observer import RequestObserver
from penstock_gateway.access_log.record import AccessRecord, current

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest


class AccessObserver:
    """Hears of the requests that get a line. served: the model's name."""

    def __init__(self, served: Callable[[], str | None]) -> None:
        self._served = served

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        record = current.get()
        if record is None:
            return None
        record.model = self._served()
        return _PromptObserver(record)


class _PromptObserver(RequestObserver):
    def __init__(self, record: AccessRecord) -> None:
        self._record = record

    def submitted(self, request: ObservedRequest) -> None:
        self._record.prompts += 1
        self._record.prompt_tokens += request.prompt_tokens

    def first_token(self, request: ObservedRequest) -> None:
        record = self._record
        if record.first_token is None and request.first_token is not None:
            record.first_token = request.first_token - record.begun

    def ended(self, request: ObservedRequest) -> None:
        self._record.output_tokens += request.generated_tokens
        self._record.cached_tokens += request.cached_tokens or 0
