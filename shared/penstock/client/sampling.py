"""What of a request's SamplingParams goes to the worker, and what to the engine core."""

from __future__ import annotations

import secrets

from penstock.errors import InvalidRequest
from penstock.protocol.common import Adjustments, Stopping, TokenSampling
from penstock.sampling_params import SamplingParams
from penstock.text.tokenizer import Tokenizer


def token_sampling(
    params: SamplingParams,
    default_seed: int | None,
    tokenizer: Tokenizer,
    candidates: int | None = None,
) -> TokenSampling:
    """The worker's share of the parameters; an absent seed is drawn here, once.

    candidates: log-probabilities to report instead of params.logprobs.  Raises InvalidRequest.
    """
    seed = params.seed if params.seed is not None else default_seed
    return TokenSampling(
        seed=secrets.randbits(64) if seed is None else seed,
        temperature=float(params.temperature),
        top_p=float(params.top_p),
        top_k=max(0, params.top_k),
        min_p=float(params.min_p),
        logprobs=params.logprobs if candidates is None else candidates,
        min_tokens=params.min_tokens,
        adjustments=adjustments(params, tokenizer),
        prompt_logprobs=params.prompt_logprobs,
    )


def adjustments(params: SamplingParams, tokenizer: Tokenizer) -> Adjustments | None:
    """Biases, penalties, allowed and banned ids; None where there are none."""
    allowed = params.allowed_token_ids
    made = Adjustments(
        presence=float(params.presence_penalty),
        frequency=float(params.frequency_penalty),
        repetition=float(params.repetition_penalty),
        bias={token: float(value) for token, value in (params.logit_bias or {}).items() if value},
        allowed=None if allowed is None else tuple(sorted(frozenset(allowed))),
        bad_words=bad_word_tokens(params.bad_words or [], tokenizer),
    )
    return None if made == _NONE else made


def bad_word_tokens(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The sequences of tokens that words encode to: each as it is, and after a space.

    Raises InvalidRequest for a word that has no tokens.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        for text in (bare, f" {bare}"):
            ids = tokenizer.encode(text, parse_special=False, add_special=False)
            if not ids:
                raise InvalidRequest(
                    f"bad_words: {word!r} encodes to no token of this model", param="bad_words"
                )
            found[tuple(ids)] = None
    return tuple(found)


def stopping(params: SamplingParams, prompt_tokens: int, max_model_len: int) -> Stopping:
    """The engine's share: at most what the context allows."""
    room = max_model_len - prompt_tokens
    wanted = room if params.max_tokens is None else min(params.max_tokens, room)
    return Stopping(
        max_tokens=wanted,
        min_tokens=min(params.min_tokens, wanted),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        ignore_eos=params.ignore_eos,
    )


_NONE = Adjustments()
