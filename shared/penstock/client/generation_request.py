"""What a generation asks of engine cores, what of its SamplingParams goes to the worker and to the
engine core, and requests that can't run: those refused here, and what a refusal means."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.media import PreparedMedia
from penstock.client.ready_params import ReadyParams
from penstock.errors import (
    EngineUnavailable,
    Field,
    InvalidRequest,
    Limited,
    Overloaded,
    PenstockError,
)
from penstock.protocol.common import (
    Repetition,
    SpeechRules,
    Stopping,
    ThinkingBudget,
    TokenSampling,
)
from penstock.protocol.from_frontend import OpenSequence
from penstock.protocol.to_frontend import Limits, Rejected, SequenceOutput, Welcome
from penstock.request.sampling_params import RepetitionDetectionParams, SamplingParams
from penstock.request.terms import Terms

POOLS = "this model gives embeddings, scores or classes; it generates no text"


def check_generates(welcome: Welcome) -> None:
    """Raises InvalidRequest where a pooling model is served."""
    if welcome.pooling is not None:
        raise InvalidRequest(POOLS, param="model", code="unsupported_model")


def check_prompt(prompt: list[int], welcome: Welcome) -> None:
    """Raises InvalidRequest for a prompt that can't run: empty, too long, ids out of range."""
    if not prompt:
        raise InvalidRequest("the prompt is empty; it must have at least one token", param="prompt")
    limit = welcome.limits.max_model_len
    if len(prompt) >= limit:
        raise InvalidRequest(
            f"the prompt has {len(prompt)} tokens; this model's context is {limit} tokens, "
            "output included",
            param="prompt",
            code="context_length_exceeded",
        )
    vocabulary = welcome.limits.vocab_size
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        bad = next(token for token in prompt if not 0 <= token < vocabulary)
        raise InvalidRequest(
            f"token id {bad} is not in the vocabulary, 0 to {vocabulary - 1}", param="prompt"
        )


def max_output(
    prompt_tokens: int, wanted: int | None, sequences: int, limits: Limits, *, many: str = "n"
) -> int:
    """Tokens that each of a request's sequences may emit: as many as are wanted (None: any number),
    and as the context leaves.  many: the field that says how many sequences there are.

    Raises InvalidRequest where all of them together could have more than a request may.  One alone
    may always fill the context.
    """
    room = limits.max_model_len - prompt_tokens
    output = room if wanted is None else min(wanted, room)
    if sequences <= 1:  # What is no number of sequences is refused elsewhere.
        return output
    allowed = limits.max_request_tokens
    left = allowed // sequences - prompt_tokens
    if wanted is None and left >= 1:
        return min(output, left)
    if output <= left:
        return output
    each = prompt_tokens + (1 if wanted is None else output)
    raise InvalidRequest(
        f"{many} is {sequences}, and each sequence may have {each} tokens, the prompt's "
        f"{prompt_tokens} among them: together {sequences * each}, more than the {allowed} that "
        "one request may have (--max-request-tokens); with so many each, ",
        Field(many),
        f" may be at most {max(1, allowed // each)}",
        param=many,
    )


def rejection(message: Rejected) -> PenstockError:
    """The exception that a Rejected stands for."""
    if message.code == "invalid":
        # The field by which a request names its adapter; of one that fails later, the same is said.
        param = "model" if message.error_code == "invalid_adapter" else None
        return InvalidRequest(message.message, param=param, code=message.error_code or None)
    retry_after = message.retry_after_ms / 1000
    if message.code == "limited":
        return Limited(message.message, retry_after=retry_after)
    if message.code == "overloaded":
        return Overloaded(message.message, retry_after=retry_after)
    return EngineUnavailable(message.message)


def failed_early(output: SequenceOutput, *, has_grammar: bool, has_media: bool) -> PenstockError:
    """The exception that an output with an error code stands for, if it is the request's first."""
    error = output.error or ""
    if output.error_code == "unavailable":
        return unavailable(error)
    if not has_media:
        return InvalidRequest(error, param="structured_outputs")
    param: str | None = "structured_outputs"
    match output.error_code:
        case "invalid_media":
            param = "messages"
        case "no_token_left" if not has_grammar:
            param = None  # Of several fields, and none of them a grammar.
    return InvalidRequest(error, param=param, code=output.error_code)


def unavailable(error: str) -> Overloaded:
    """What the error code `unavailable` stands for."""
    return Overloaded(error, retry_after=1.0)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What is asked of an engine core. It stays as it is, wherever and however often the request is
    submitted."""

    name: str
    prompt_token_ids: list[int]
    params: SamplingParams
    sampling: TokenSampling
    """The worker's share of `params`."""
    stopping: Stopping
    """The engine core's share of `params`."""
    terms: Terms
    ready: ReadyParams
    """What is made of `params` once for all prompts of a body."""
    media: PreparedMedia | None = None
    """What placeholders of the prompt stand for, which engine cores may ask for."""
    prediction: Sequence[int] = ()
    """Token ids that the output is expected to resemble."""
    claimed: bool = False
    """Whether `prediction` is what somebody claims the output to be, and this is to find out."""
    sequences: tuple[OpenSequence, ...] = ()
    """What runs in place of all n sequences from their beginning: some of them, each after what it
    has emitted."""


def token_sampling(
    params: SamplingParams,
    ready: ReadyParams,
    default_seed: int | None,
    speech: SpeechRules | None = None,
    thinking: ThinkingBudget | None = None,
) -> TokenSampling:
    """The worker's share of the parameters, to be sent; an absent seed is drawn here, once. ready:
    what was made of them.  speech: of a transcript.  thinking: what thinking_token_budget is for
    this model."""
    seed = params.seed if params.seed is not None else default_seed
    return TokenSampling(
        seed=secrets.randbits(64) if seed is None else seed,
        temperature=float(params.temperature),
        top_p=float(params.top_p),
        top_k=max(0, params.top_k),
        min_p=float(params.min_p),
        logprobs=0 if ready.logprob_ids else params.logprobs,
        logprob_ids=ready.logprob_ids,
        min_tokens=params.min_tokens,
        adjustments=ready.adjusted(speech, thinking),
        prompt_logprobs=params.prompt_logprobs,
    )


def stopping(params: SamplingParams, prompt_tokens: int, limits: Limits) -> Stopping:
    """The engine's share: at most what the context allows. Raises InvalidRequest."""
    wanted = max_output(prompt_tokens, params.max_tokens, params.n, limits)
    return Stopping(
        max_tokens=wanted,
        min_tokens=min(params.min_tokens, wanted),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        ignore_eos=params.ignore_eos,
        repetition=_repetition(params.repetition_detection),
    )


def _repetition(wanted: RepetitionDetectionParams | None) -> Repetition | None:
    if wanted is None:
        return None
    least = max(1, wanted.min_pattern_size)
    return Repetition(least, wanted.max_pattern_size, wanted.min_count)
