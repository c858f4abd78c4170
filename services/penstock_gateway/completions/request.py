"""The body of POST /v1/completions, and the prompts in it."""

from __future__ import annotations

from typing import Any, cast

from penstock.errors import InvalidRequest
from penstock.request.sampling_params import MAX_LOGPROBS
from penstock_gateway.generate.beam_search import check_search
from penstock_gateway.generate.reply import check_prompt_logprobs
from penstock_gateway.request.fields import (
    COMMON,
    Flag,
    GenerateFields,
    Text,
    UnsupportedField,
    Whole,
    check_unsupported,
)

MAX_PROMPTS = 128
MAX_SEQUENCES = 1024
"""Prompts times n, in one request."""
DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]


class CompletionRequest(GenerateFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields beside those of GenerateFields.

    prompt: a text, a list of texts, a list of token ids, or a list of such lists.
    parse_special: whether special tokens in a prompt's text are parsed (Penstock's own).
    """

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: Whole = None
    add_special_tokens: Flag = None
    parse_special: Flag = None

    suffix: Text = None
    prompt_embeds: Any = None


RULES = (*COMMON, UnsupportedField("suffix", ("",)), UnsupportedField("prompt_embeds"))


def check(request: CompletionRequest) -> None:
    """What can be told without a model. Raises InvalidRequest."""
    check_unsupported(request, RULES)
    check_prompt_logprobs(request)
    check_search(request)
    count = request.logprobs
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"logprobs must be a whole number in [0, {MAX_LOGPROBS}], not {count}",
            param="logprobs",
        )


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """The prompts in order, each a text or token ids, none empty. Raises InvalidRequest."""
    prompts = _as_list(request.prompt)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt has {len(prompts)} entries; at most {MAX_PROMPTS} are allowed",
            param="prompt",
        )
    n = request.best_of or (1 if request.n is None else request.n)
    if len(prompts) * n > MAX_SEQUENCES:
        raise InvalidRequest(
            f"{len(prompts)} prompts with n = {n} make {len(prompts) * n} choices; at most "
            f"{MAX_SEQUENCES} are allowed",
            param="n",
        )
    for position, prompt in enumerate(prompts):
        if not prompt:
            which = f"prompt[{position}]" if len(prompts) > 1 else "prompt"
            raise InvalidRequest(
                f"{which} is empty; it must have at least one token", param="prompt"
            )
    return prompts


def _as_list(prompt: str | list[str | int | list[int]] | None) -> list[Prompt]:
    if prompt is None:
        raise InvalidRequest("prompt is missing", param="prompt", code="missing_required_parameter")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest(
            "prompt is an empty list; it must have at least one entry", param="prompt"
        )
    kind = type(prompt[0])
    if any(type(element) is not kind for element in prompt):
        raise InvalidRequest(
            "prompt mixes types; it must be a string, a list of strings, a list of token ids, or a "
            "list of lists of token ids",
            param="prompt",
            code="invalid_type",
        )
    if kind is int:
        return [cast("list[int]", prompt)]
    return cast("list[Prompt]", prompt)
