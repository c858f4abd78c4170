"""Logs requests with long prompts, and counts them in /metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from penstock.client.observer import ObservedRequest, RequestObserver
from penstock.process import logs
from penstock_gateway.service import Service

log = logs.get(__name__)

LONG = 32
"""Tokens."""

COUNTS: Counter[str] = Counter()
"""Long prompts by model; a gateway's requests all run in one thread."""


class LongPrompts:
    """Hears of all requests to one model. served: gives its name, once it is known."""

    def __init__(self, served: Callable[[], str | None]) -> None:
        self._served = served

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        return _LongPrompt(self._served() or "") if prompt_tokens >= LONG else None


class _LongPrompt(RequestObserver):
    def __init__(self, model: str) -> None:
        self._model = model

    def ended(self, request: ObservedRequest) -> None:
        COUNTS[self._model] += 1
        log.info(
            "a long prompt",
            model=self._model,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.generated_tokens,
        )


def families(service: Service) -> Iterator[Metric]:
    """Called whenever somebody asks for /metrics."""
    words = f"Requests with prompts of {LONG} tokens or more that have ended."
    family = CounterMetricFamily("example:long_prompts", words, labels=["model_name"])
    for model, count in COUNTS.items():
        family.add_metric([model], count)
    yield family
