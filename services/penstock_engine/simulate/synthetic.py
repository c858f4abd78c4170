"""Traffic made from a seed: Poisson arrivals, log-normal lengths, shared prefixes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequest
from penstock_engine.simulate.trace import MAX_TOKENS, TraceRequest


class Synthetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """rate: arrivals per second.  prompt, output: medians, tokens; sigma: of the logarithm.
    max_prompt, max_output: longer draws are cut there.
    shared: share of requests that begin with one of `groups` prefixes of `prefix` tokens.
    adapters: each request names one of so many, all as often; 0: none does.
    tenants: names with their shares of the traffic, `a:3,b:1`.
    burst: the rate swings by this share, as a sine of `period` seconds."""

    rate: Annotated[float, Meta(gt=0, le=1e6)] = 2.0
    requests: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1000
    prompt: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 128
    prompt_sigma: Annotated[float, Meta(ge=0, le=4)] = 0.8
    max_prompt: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 2048
    output: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 64
    output_sigma: Annotated[float, Meta(ge=0, le=4)] = 0.6
    max_output: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 512
    shared: Annotated[float, Meta(ge=0, le=1)] = 0.0
    groups: Annotated[int, Meta(ge=1, le=65_536)] = 8
    prefix: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 256
    adapters: Annotated[int, Meta(ge=0, le=65_536)] = 0
    tenants: str = ""
    burst: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    period: Annotated[float, Meta(gt=0)] = 3600.0
    seed: Annotated[int, Meta(ge=0)] = 0


def parse(text: str) -> Synthetic:
    """`rate=2,requests=1000,prompt=128`; the tenants' list has `+` between its pairs.

    Raises InvalidRequest, which names what isn't allowed.
    """
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    fields = {name.strip(): value.replace("+", ",") for name, _, value in pairs}
    try:
        made = msgspec.convert(fields, Synthetic, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(Synthetic.__struct_fields__)
        raise InvalidRequest(f"synthetic trace {text!r}: {error}; fields: {names}") from None
    _tenants(made.tenants)
    return made


def synthetic(options: Synthetic) -> Iterator[TraceRequest]:
    """The requests, always the same ones for the same options."""
    rng = random.Random(options.seed)
    draw, lognormal = rng.random, rng.lognormvariate
    prompt, output = math.log(options.prompt), math.log(options.output)
    names, weights = _tenants(options.tenants)
    at = 0.0
    for _ in range(options.requests):
        at += rng.expovariate(_rate(options, at))
        own = min(max(round(lognormal(prompt, options.prompt_sigma)), 1), options.max_prompt)
        out = min(max(round(lognormal(output, options.output_sigma)), 1), options.max_output)
        group = rng.randrange(options.groups) if draw() < options.shared else None
        prefix = 0 if group is None else options.prefix
        tenant = rng.choices(names, weights)[0] if len(names) > 1 else names[0]
        adapter = f"adapter-{rng.randrange(options.adapters)}" if options.adapters else ""
        yield TraceRequest(at, prefix + own, out, tenant, 0, group, prefix, adapter=adapter)


def _rate(options: Synthetic, at: float) -> float:
    if not options.burst:
        return options.rate
    return options.rate * (1 + options.burst * math.sin(2 * math.pi * at / options.period))


def _tenants(text: str) -> tuple[list[str], list[float]]:
    names, weights = [], []
    for pair in text.split(",") if text else [""]:
        name, _, weight = pair.partition(":")
        try:
            weights.append(float(weight or 1))
        except ValueError:
            weights.append(0.0)
        if not (math.isfinite(weights[-1]) and weights[-1] > 0):
            raise InvalidRequest(f"tenants {text!r}: {pair!r} is not NAME:SHARE, as in a:3")
        names.append(name)
    return names, weights
