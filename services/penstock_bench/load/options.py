"""What to run. Every bad value is an OptionError that says what is allowed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_REQUESTS = 1_000_000
MAX_TOKENS = 1_000_000
MAX_CONCURRENCY = 20_000


class OptionError(ValueError):
    """An option's value is out of what is allowed."""


@dataclass(frozen=True)
class Length:
    """A number of tokens: fixed, uniform between two, or log-normal up to a bound."""

    kind: Literal["fixed", "uniform", "lognormal"]
    low: int
    high: int
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Length:
        """`128`, `uniform:LOW:HIGH` or `lognormal:MEDIAN:SIGMA:MAX`."""
        kind, *values = text.split(":") if ":" in text else ("fixed", text)
        try:
            if kind == "fixed" and len(values) == 1:
                length = cls("fixed", int(values[0]), int(values[0]))
            elif kind == "uniform" and len(values) == 2:
                length = cls("uniform", int(values[0]), int(values[1]))
            elif kind == "lognormal" and len(values) == 3:
                length = cls("lognormal", int(values[0]), int(values[2]), float(values[1]))
            else:
                raise ValueError
        except ValueError:
            raise OptionError(
                f"{text!r} is no length; use 128, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX"
            ) from None
        bounds_ok = 1 <= length.low <= length.high <= MAX_TOKENS
        if not bounds_ok or not (math.isfinite(length.sigma) and 0 <= length.sigma <= 5):
            raise OptionError(f"{text!r}: 1 <= low <= high <= {MAX_TOKENS}, 0 <= sigma <= 5")
        return length

    def draw(self, rng: random.Random) -> int:
        if self.kind == "fixed":
            return self.low
        if self.kind == "uniform":
            return rng.randint(self.low, self.high)
        drawn = round(rng.lognormvariate(math.log(self.low), self.sigma))
        return min(max(drawn, 1), self.high)

    def __str__(self) -> str:
        if self.kind == "fixed":
            return str(self.low)
        middle = f"{self.sigma:g}:" if self.kind == "lognormal" else ""
        return f"{self.kind}:{self.low}:{middle}{self.high}"


@dataclass(frozen=True)
class EndControl:
    """How the server is made to generate up to max_tokens.

    field: the body field ignore_eos (vLLM, Penstock, llama.cpp's own server);
    logit-bias: the end tokens' ids get a bias of -100 (servers without that field);
    none: an answer may end early.
    """

    kind: Literal["field", "logit-bias", "none"] = "field"
    token_ids: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> EndControl:
        """`field`, `none` or `logit-bias:ID,ID`."""
        if text == "field" or text == "none":
            return cls(text)  # type: ignore[arg-type]
        kind, _, ids = text.partition(":")
        try:
            if kind != "logit-bias":
                raise ValueError
            return cls("logit-bias", tuple(int(part) for part in ids.split(",")))
        except ValueError:
            raise OptionError(
                f"{text!r} is no way to end; use field, none or logit-bias:ID,ID"
            ) from None

    def fields(self) -> dict[str, Any]:
        if self.kind == "field":
            return {"ignore_eos": True}
        if self.kind == "logit-bias":
            return {"logit_bias": {str(token): -100 for token in self.token_ids}}
        return {}

    def __str__(self) -> str:
        if self.kind != "logit-bias":
            return self.kind
        return "logit-bias:" + ",".join(map(str, self.token_ids))


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """One run. rate None: closed loop with `concurrency` streams; else open loop.

    requests bounds the count; duration (s) stops new requests; max_time (s) ends everything,
    what still runs is counted as cut off; timeout (s) bounds each request. The warm-up has its own
    bound, warmup_time (s).
    """

    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    concurrency: int = 8
    rate: float | None = None
    arrivals: Literal["poisson", "constant"] = "poisson"
    requests: int = 64
    duration: float | None = None
    max_time: float | None = None
    timeout: float = 600.0
    max_in_flight: int = 10_000
    warmup: int = 2
    warmup_time: float | None = None
    input_tokens: Length = field(default_factory=lambda: Length.parse("128"))
    output_tokens: Length = field(default_factory=lambda: Length.parse("128"))
    prompt_kind: Literal["text", "token-ids"] = "text"
    token_id_range: tuple[int, int] = (1000, 20_000)
    shared_prefix: int = 0
    end_control: EndControl = field(default_factory=EndControl)
    check_length: bool = True
    usage_per_chunk: bool = False
    temperature: float = 0.0
    seed: int = 0
    extra_body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _within("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        _within("max-in-flight", self.max_in_flight, 1, MAX_CONCURRENCY)
        _within("requests", self.requests, 1, MAX_REQUESTS)
        _within("warmup", self.warmup, 0, MAX_REQUESTS)
        _within("shared-prefix", self.shared_prefix, 0, MAX_TOKENS)
        _within("temperature", self.temperature, 0, 100)
        _within("timeout", self.timeout, 0.001, 86_400)
        for name in ("duration", "max_time", "warmup_time"):
            value = getattr(self, name)
            if value is not None:
                _within(name.replace("_", "-"), value, 0.001, 86_400)
        if self.rate is not None:
            _within("rate", self.rate, 0.0001, 1_000_000)
        low, high = self.token_id_range
        if not 0 <= low < high:
            raise OptionError(f"token-id-range must have 0 <= LOW < HIGH, not {low}:{high}")
        if self.prompt_kind == "token-ids" and self.endpoint == "chat":
            raise OptionError("a chat takes text; token-id prompts need --endpoint completions")

    @property
    def exact_length(self) -> bool:
        """Whether an answer of another length is an error."""
        return self.check_length and self.end_control.kind != "none"


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(f"{name} must be in [{low:g}, {high:g}], not {value!r}")
