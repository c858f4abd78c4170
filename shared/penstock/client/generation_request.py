"""What a generation asks of engine cores, and what of its SamplingParams goes to the worker and to
the engine core."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.media import PreparedMedia
from penstock.client.refusals import max_output
from penstock.errors import InvalidRequest
from penstock.protocol.common import (
    Grammar,
    LogitsAdjustments,
    SpeechRules,
    Stopping,
    TokenSampling,
)
from penstock.protocol.to_frontend import Limits
from penstock.request.sampling_params import SamplingParams
from penstock.request.terms import Terms
from penstock.text.tokenizer import Tokenizer


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
    grammar: Grammar | None = None
    media: PreparedMedia | None = None
    """What placeholders of the prompt stand for, which engine cores may ask for."""
    prediction: Sequence[int] = ()
    """Token ids that the output is expected to resemble."""


def token_sampling(
    params: SamplingParams,
    default_seed: int | None,
    tokenizer: Tokenizer,
    limits: Limits,
    speech: SpeechRules | None = None,
) -> TokenSampling:
    """The worker's share of the parameters; an absent seed is drawn here, once. speech: of a
    transcript. Raises InvalidRequest."""
    seed = params.seed if params.seed is not None else default_seed
    return TokenSampling(
        seed=secrets.randbits(64) if seed is None else seed,
        temperature=float(params.temperature),
        top_p=float(params.top_p),
        top_k=max(0, params.top_k),
        min_p=float(params.min_p),
        logprobs=params.logprobs,
        min_tokens=params.min_tokens,
        adjustments=adjustments(params, tokenizer, limits, speech),
        prompt_logprobs=params.prompt_logprobs,
    )


def adjustments(
    params: SamplingParams,
    tokenizer: Tokenizer,
    limits: Limits,
    speech: SpeechRules | None = None,
) -> LogitsAdjustments | None:
    """Biases, penalties, allowed and banned ids, rules of transcripts; None where there are none.
    Raises InvalidRequest."""
    bias, allowed = params.logit_bias or {}, params.allowed_token_ids
    _check_count("logit_bias", len(bias), limits.max_logit_bias)
    _check_count("allowed_token_ids", len(allowed or ()), limits.max_allowed_token_ids)
    made = LogitsAdjustments(
        presence=float(params.presence_penalty),
        frequency=float(params.frequency_penalty),
        repetition=float(params.repetition_penalty),
        bias={token: float(value) for token, value in bias.items() if value},
        allowed=None if allowed is None else tuple(sorted(frozenset(allowed))),
        bad_words=bad_word_tokens(params.bad_words or [], tokenizer, limits.max_bad_words_tokens),
        speech=speech,
    )
    return None if made == _NONE else made


def bad_word_tokens(
    words: list[str], tokenizer: Tokenizer, most: int
) -> tuple[tuple[int, ...], ...]:
    """The sequences of tokens that words encode to: each as it is, and after a space.

    most: ids that all of them may have.  Raises InvalidRequest for more, and for a word that has no
    tokens.
    """
    found: dict[tuple[int, ...], None] = {}
    count = 0
    for word in words:
        bare = word.lstrip() or word
        for text in (bare, f" {bare}"):
            ids = tuple(tokenizer.encode(text, parse_special=False, add_special=False))
            if not ids:
                raise InvalidRequest(
                    f"bad_words: {word!r} encodes to no tokens of this model", param="bad_words"
                )
            if ids not in found:
                found[ids] = None
                count += len(ids)
        if count > most:
            raise InvalidRequest(
                f"bad_words encode to more than {most} token ids, with and without a space before "
                f"each; at most {most} are allowed (--max-bad-words-tokens)",
                param="bad_words",
            )
    return tuple(found)


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        setting = field.replace("_", "-")
        raise InvalidRequest(
            f"{field} holds {count} token ids; at most {most} are allowed (--max-{setting})",
            param=field,
        )


def stopping(params: SamplingParams, prompt_tokens: int, limits: Limits) -> Stopping:
    """The engine's share: at most what the context allows. Raises InvalidRequest."""
    wanted = max_output(prompt_tokens, params.max_tokens, params.n, limits)
    return Stopping(
        max_tokens=wanted,
        min_tokens=min(params.min_tokens, wanted),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        ignore_eos=params.ignore_eos,
    )


_NONE = LogitsAdjustments()
