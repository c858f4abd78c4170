"""What a generation asks of engine cores, and what of its SamplingParams goes to the worker and to
the engine core."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.media import PreparedMedia
from penstock.client.ready_params import ReadyParams
from penstock.client.request_bounds import max_output
from penstock.protocol.common import (
    Repetition,
    SpeechRules,
    Stopping,
    ThinkingBudget,
    TokenSampling,
)
from penstock.protocol.from_frontend import OpenSequence
from penstock.protocol.to_frontend import Limits
from penstock.request.sampling_params import RepetitionDetectionParams, SamplingParams
from penstock.request.terms import Terms


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
