"""What a reply shows of its request's tokens, beside the answer's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import InvalidRequest
from penstock.protocol.common import TokenLogprobs
from penstock.request.sampling_params import MAX_LOGPROBS
from penstock_gateway.request.fields import GenerateFields

PromptLogprobsSource = Callable[[int], list[TokenLogprobs | None] | None]
"""The log-probabilities of a prompt's tokens, by the prompt's index; from the first delta on."""


@dataclass(frozen=True, slots=True)
class EchoOptions:
    """What the client wants to see of tokens."""

    logprobs: bool = False
    """Log-probabilities of the answer's tokens."""
    as_ids: bool = False
    """Tokens are written as token_id:5."""
    token_ids: bool = False
    """The ids of prompt and answer."""
    prompt_logprobs: int | None = None
    """How many alternatives to show for each of the prompt's tokens; None: no log-probabilities."""
    echo: bool = False
    """The prompt comes before the answer."""

    @classmethod
    def of(cls, request: GenerateFields, *, logprobs: bool) -> EchoOptions:
        return cls(
            logprobs=logprobs,
            as_ids=bool(request.return_tokens_as_token_ids),
            token_ids=bool(request.return_token_ids),
            prompt_logprobs=request.prompt_logprobs,
            echo=bool(request.echo),
        )


def no_prompt_logprobs(prompt: int) -> None:
    """A PromptLogprobsSource that knows of no prompt."""


def check_prompt_logprobs(request: GenerateFields) -> None:
    """Raises InvalidRequest for a count out of range, and for one with a stream."""
    count = request.prompt_logprobs
    if count is None:
        return
    if not 0 <= count <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"prompt_logprobs must be a whole number in [0, {MAX_LOGPROBS}], not {count}",
            param="prompt_logprobs",
        )
    if request.stream:
        raise InvalidRequest(
            f"prompt_logprobs is {count}; with stream: true it must be null",
            param="prompt_logprobs",
        )
