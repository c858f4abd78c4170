"""What generate and chat return. Names and shapes as in vLLM, so that scripts carry over."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.common import FinishReason

PromptLogprobs = list["dict[int, Logprob] | None"]
"""One entry for each token of the prompt; None for the first, which nothing came before."""


@dataclass(slots=True)
class Logprob:
    """Natural log-probability of one token at one position, of the raw distribution.

    rank: 1 for the likeliest; None for an emitted token outside the reported top, and where ids
    were listed.
    """

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True)
class RequestMetrics:
    """Moments of a request, in Unix seconds; None until they have come.

    arrival_time: it was submitted.  first_token_time, last_token_time: this process got them.
    finished_time: its last sequence ended.
    """

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence. token_ids include the token that ended it; text doesn't.

    logprobs: for each token a dict from token id to Logprob, holding the emitted token and the
    top alternatives; None unless asked for.  error: why, when finish_reason is "error".
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def finished(self) -> bool:
        """Whether the sequence has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request and what it has produced so far.

    prompt: the text, of a conversation as the chat template renders it; None for token ids.
    num_cached_tokens: of the prompt, found in the KV cache; None before the request has started.
    prompt_logprobs: for each token of the prompt what CompletionOutput.logprobs has for emitted
    ones, and None for the first; None unless asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    metrics: RequestMetrics | None = None
