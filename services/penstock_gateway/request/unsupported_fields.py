"""Fields that are known and do nothing yet: accepted at the value that asks for nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import clip
from penstock_gateway.request.fields import RequestFields


class Neutral(NamedTuple):
    """A field, and its values other than null that ask for nothing."""

    field: str
    values: tuple[Any, ...] = ()


COMMON = (
    Neutral("logits_processors", ([],)),
    Neutral("logprob_token_ids"),
    Neutral("truncation_side"),
    Neutral("watermarking", (False,)),
    Neutral("repetition_detection"),
    Neutral("thinking_token_budget", (-1,)),
    Neutral("stream_interval", (1,)),
    Neutral("routed_experts_prompt_start", (0,)),
    Neutral("kv_transfer_params", ({},)),
    Neutral("ec_transfer_params", ({},)),
    Neutral("vllm_xargs", ({},)),
    Neutral("moderation"),
)


def require_neutral(request: RequestFields, rules: tuple[Neutral, ...]) -> None:
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
