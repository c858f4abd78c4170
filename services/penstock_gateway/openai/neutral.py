"""Fields that are known and do nothing yet: accepted at the value that asks for nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.errors import InvalidRequest
from penstock_gateway.errors import clip
from penstock_gateway.openai.fields import GenerateFields


class Neutral(NamedTuple):
    """A field, and its values other than null that ask for nothing."""

    field: str
    values: tuple[Any, ...] = ()


COMMON = (
    Neutral("presence_penalty", (0,)),
    Neutral("frequency_penalty", (0,)),
    Neutral("repetition_penalty", (1,)),
    Neutral("logit_bias", ({},)),
    Neutral("allowed_token_ids"),
    Neutral("bad_words", ([],)),
    Neutral("logits_processors", ([],)),
    Neutral("logprob_token_ids"),
    Neutral("prompt_logprobs"),
    Neutral("response_format", ({"type": "text"},)),
    Neutral("structured_outputs"),
    Neutral("structural_tag"),
    Neutral("guided_json"),
    Neutral("guided_regex"),
    Neutral("guided_choice", ([],)),
    Neutral("guided_grammar"),
    Neutral("use_beam_search", (False,)),
    Neutral("include_stop_str_in_output", (False,)),
    Neutral("truncate_prompt_tokens"),
    Neutral("truncation_side"),
    Neutral("return_tokens_as_token_ids", (False,)),
    Neutral("return_token_ids", (False,)),
    Neutral("echo", (False,)),
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


def require_neutral(request: GenerateFields, rules: tuple[Neutral, ...]) -> None:
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


def require_best_of(request: GenerateFields) -> None:
    """best_of is n: picking the best of more is not supported yet."""
    n = 1 if request.n is None else request.n
    if request.best_of is not None and request.best_of != n:
        raise InvalidRequest(
            f"best_of is {request.best_of}; only the value of n, {n}, is supported",
            param="best_of",
            code="unsupported_value",
        )
