"""Everything that this gateway counts about the requests that it submits to the engine core."""

from __future__ import annotations

from penstock.metrics.histogram import Histogram

# vLLM's bounds, so that dashboards made for it show the same detail.
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
WHOLE_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")


class GatewayCounts:
    """Since the process began. Times in seconds, as this gateway sees them."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cache_queries = 0
        self.cache_hits = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.first_token = Histogram(FIRST_TOKEN)
        self.between_tokens = Histogram(BETWEEN_TOKENS)
        self.whole_request = Histogram(WHOLE_REQUEST)
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.longest_sequence = Histogram(TOKENS)
        self.max_tokens = Histogram(TOKENS)
        self.choices = Histogram(CHOICES)
        self.queue = Histogram(WHOLE_REQUEST)
        self.prefill = Histogram(WHOLE_REQUEST)
        self.decode = Histogram(WHOLE_REQUEST)
        self.inference = Histogram(WHOLE_REQUEST)
