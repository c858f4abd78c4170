"""Which requests: seeded prompts, lengths, request bodies, arrival times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock_bench.load.options import LoadOptions


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


# Common English words, each one token of a byte-pair vocabulary with or without a space before
# it (checked on SmolLM2's), so that n words make about n tokens.

_TEXT = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea kid body information back parent face others
level office door health person art war history party result change reason research girl moment
air teacher force education foot boy age policy music market sense nation plan college interest
death experience effect use class control field development role rate heart drug show leader
light voice wife mind price report decision son view relationship town road arm difference value
building action season tax director position player record paper space ground form event
official matter center site project activity star table need court oil cost industry figure
street image phone data picture practice piece land product doctor wall patient worker news test
movie north love support technology step baby computer type attention film tree source red blue
green small large old new long great little own other high young early big different local able
free true full clear simple open hard best known
"""
WORDS = _TEXT.split()
