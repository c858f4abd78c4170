"""Known fields without an implementation: accepted only at the value that requests nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import clip
from penstock_gateway.request.fields import RequestFields


class UnsupportedField(NamedTuple):
    """A known field that does nothing yet."""

    field: str
    values: tuple[Any, ...] = ()
    """Values other than null that ask for nothing, and so are accepted."""


COMMON = (
    UnsupportedField("logits_processors", ([],)),
    UnsupportedField("logprob_token_ids"),
    UnsupportedField("truncation_side"),
    UnsupportedField("watermarking", (False,)),
    UnsupportedField("repetition_detection"),
    UnsupportedField("thinking_token_budget", (-1,)),
    UnsupportedField("stream_interval", (1,)),
    UnsupportedField("routed_experts_prompt_start", (0,)),
    UnsupportedField("kv_transfer_params", ({},)),
    UnsupportedField("ec_transfer_params", ({},)),
    UnsupportedField("vllm_xargs", ({},)),
    UnsupportedField("moderation"),
)


VERBOSITIES = ("low", "medium", "high")


def check_verbosity(field: str, value: str | None) -> None:
    """Raises InvalidRequest for an unknown verbosity. A known one has no effect: no model that is
    served knows it."""
    if value is not None and value not in VERBOSITIES:
        raise InvalidRequest(
            f"{field} is {clip(value)}; allowed: {', '.join(VERBOSITIES)}",
            param=field,
            code="invalid_value",
        )


def check_unsupported(request: RequestFields, rules: tuple[UnsupportedField, ...]) -> None:
    """Raises InvalidRequest naming the first field with a value that is not supported yet."""
    for field, values in rules:
        value = getattr(request, field)
        if value is not None and value not in values:
            allowed = " or ".join([*map(clip, values), "null"])
            raise InvalidRequest(
                f"{field} is {clip(value)}, which is not supported yet; allowed: {allowed}",
                param=field,
                code="unsupported_value",
            )
