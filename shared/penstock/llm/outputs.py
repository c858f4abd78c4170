"""What generate and chat return. Names and shapes as in vLLM, so that scripts carry over."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.generation import Generation, SequenceDelta
from penstock.protocol.common import FinishReason, TokenLogprobs
from penstock.sampling_params import SamplingParams
from penstock.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Logprob:
    """Natural log-probability of one token at one position, of the raw distribution.

    rank: 1 for the likeliest; None for an emitted token outside the reported top.
    """

    logprob: float
    rank: int | None
    decoded_token: str


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


@dataclass(slots=True)
class RequestOutput:
    """A request and what it has produced so far. prompt is None when it was given as token ids.

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
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


def empty_output(generation: Generation, prompt: str | None) -> RequestOutput:
    """A RequestOutput with n sequences that have produced nothing yet."""
    wants_logprobs = generation.params.logprobs is not None
    outputs = [
        CompletionOutput(
            index,
            cumulative_logprob=0.0 if wants_logprobs else None,
            logprobs=[] if wants_logprobs else None,
        )
        for index in range(generation.params.n)
    ]
    return RequestOutput(generation.name, prompt, generation.prompt_token_ids, outputs)


def timed_out_output(
    name: str, prompt: str | None, ids: list[int], params: SamplingParams
) -> RequestOutput:
    """What is returned of a request whose deadline passed before it could be submitted."""
    outputs = [CompletionOutput(index, finish_reason="timeout") for index in range(params.n)]
    return RequestOutput(name, prompt, ids, outputs, finished=True)


def add_delta(output: CompletionOutput, delta: SequenceDelta, tokenizer: Tokenizer) -> None:
    """Appends a delta to the sequence that it belongs to."""
    if delta.logprobs is not None and output.logprobs is not None:
        for token, entry in zip(delta.token_ids, delta.logprobs, strict=True):
            output.logprobs.append(by_token(token, entry, tokenizer))
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + entry.logprob
    output.text += delta.text
    output.token_ids.extend(delta.token_ids)
    output.finish_reason = delta.finish_reason
    output.stop_reason = delta.stop_reason
    output.error = delta.error


def prompt_logprobs(
    generation: Generation, tokenizer: Tokenizer
) -> list[dict[int, Logprob] | None] | None:
    """What a generation's first delta has brought of its prompt's log-probabilities."""
    entries = generation.prompt_logprobs
    if entries is None:
        return None
    return [
        None if entry is None else by_token(token, entry, tokenizer)
        for token, entry in zip(generation.prompt_token_ids, entries, strict=False)
    ]


def by_token(token: int, entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    top = {
        id_: Logprob(value, rank, tokenizer.token_text(id_))
        for rank, (id_, value) in enumerate(
            zip(entry.top_ids, entry.top_logprobs, strict=True), start=1
        )
    }
    if token not in top:
        top[token] = Logprob(entry.logprob, None, tokenizer.token_text(token))
    return top
