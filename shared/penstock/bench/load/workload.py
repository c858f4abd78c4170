"""Which requests: seeded prompts, lengths, request bodies, arrival times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.bench.load.options import LoadOptions
from penstock.bench.load.words import WORDS


@dataclass(frozen=True, slots=True)
class LoadRequest:
    index: int
    body: bytes
    output_tokens: int


class Workload:
    """Requests by index: the same options and seed always give the same bytes.

    Prompts differ from their first word on, so that no prefix cache helps, except for the
    `shared_prefix` tokens that the options ask for.
    """

    def __init__(self, options: LoadOptions, model: str) -> None:
        self._options = options
        self._model = model
        self._prefix = self._tokens(random.Random(f"{options.seed}/prefix"), options.shared_prefix)

    @property
    def path(self) -> str:
        chat = self._options.endpoint == "chat"
        return "/v1/chat/completions" if chat else "/v1/completions"

    def request(self, index: int) -> LoadRequest:
        """Negative indices are the warm-up's."""
        options = self._options
        rng = random.Random(f"{options.seed}/{index}")
        own = max(options.input_tokens.draw(rng) - options.shared_prefix, 1)
        output_tokens = options.output_tokens.draw(rng)
        prompt = self._prefix + self._tokens(rng, own)
        body: dict[str, Any] = {
            "model": self._model,
            **self._prompt(prompt),
            "max_tokens": output_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": self._stream_options(),
            **options.end_control.fields(),
            **options.extra_body,
        }
        return LoadRequest(index, msgspec.json.encode(body), output_tokens)

    def _prompt(self, tokens: list[Any]) -> dict[str, Any]:
        if self._options.prompt_kind == "token-ids":
            return {"prompt": tokens}
        text = " ".join(tokens)
        if self._options.endpoint == "chat":
            return {"messages": [{"role": "user", "content": text}]}
        return {"prompt": text}

    def _stream_options(self) -> dict[str, bool]:
        wanted = {"include_usage": True}
        if self._options.usage_per_chunk:
            wanted["continuous_usage_stats"] = True
        return wanted

    def _tokens(self, rng: random.Random, count: int) -> list[Any]:
        if self._options.prompt_kind == "token-ids":
            low, high = self._options.token_id_range
            return [rng.randrange(low, high) for _ in range(count)]
        return rng.choices(WORDS, k=count)


def arrival_times(options: LoadOptions) -> Iterator[float]:
    """Open loop: seconds after the start at which each request is due. Endless; seeded.

    Poisson arrivals have exponential gaps of mean 1/rate; constant ones have gaps of 1/rate.
    """
    rate = options.rate
    if rate is None:
        raise ValueError("arrival times need a rate")
    if options.arrivals == "constant":
        index = 0
        while True:
            yield index / rate
            index += 1
    rng = random.Random(f"{options.seed}/arrivals")
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at
