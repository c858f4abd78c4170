"""What is made of a request's SamplingParams once, however many prompts it has: bad words as
tokens, biases, the grammar's text."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.protocol.common import Grammar, LogitsAdjustments, SpeechRules, ThinkingBudget

if TYPE_CHECKING:
    from penstock.protocol.to_frontend import Limits
    from penstock.request.sampling_params import SamplingParams
    from penstock.text.tokenizer import Tokenizer

_READ = (
    "bad_words",
    "logit_bias",
    "allowed_token_ids",
    "structured_outputs",
    "logprob_token_ids",
)
"""Fields of SamplingParams, in addition to the penalties, that are read only here."""

_BYTES_PER_TOKEN = 4
"""Bytes of a Submit that take as long to encode and send as a token of its prompt, at most."""


class ReadyParams(msgspec.Struct, frozen=True):
    """It replaces the SamplingParams' fields that it was made from, which may be large: see
    `without_ready`. It can go to another process as msgpack."""

    adjustments: bytes = b""
    """A LogitsAdjustments as msgpack, which every Submit holds as it is; empty: there is none."""
    grammar: Grammar | None = None
    """What the output has to look like; None: anything."""
    logprob_ids: tuple[int, ...] = ()
    """Ids whose log-probabilities are reported, see TokenSampling."""

    @property
    def tokens(self) -> int:
        """Tokens of a prompt that are as much to send."""
        grammar = 0 if self.grammar is None else len(self.grammar.text)
        return (len(self.adjustments) + grammar) // _BYTES_PER_TOKEN

    def adjusted(
        self, speech: SpeechRules | None = None, thinking: ThinkingBudget | None = None
    ) -> LogitsAdjustments | None:
        """The adjustments with what depends on the prompt. What is encoded already stands in them
        as a `msgspec.Raw`: they are there to be sent."""
        if speech is None and thinking is None:
            return _raw(self.adjustments) if self.adjustments else None
        own = _decoder.decode(self.adjustments) if self.adjustments else _NONE
        return msgspec.structs.replace(own, speech=speech, thinking=thinking)


def ready_params(params: SamplingParams, tokenizer: Tokenizer, limits: Limits) -> ReadyParams:
    """What all prompts with these params have in common. Raises InvalidRequest for what isn't of
    this model or is more than an engine core takes."""
    found = adjustments(params, tokenizer, limits)
    return ReadyParams(
        adjustments=b"" if found is None else msgspec.msgpack.encode(found),
        grammar=_grammar(params, limits),
        logprob_ids=_listed(ids, limits) if (ids := params.logprob_token_ids) else (),
    )


def ready_of_each(
    params: Sequence[SamplingParams], tokenizer: Tokenizer, limits: Limits
) -> list[ReadyParams]:
    """The ReadyParams of each, made once of those that share what they are made from. Raises as
    `ready_params`."""
    made: dict[tuple[object, ...], ReadyParams] = {}
    for each in params:
        if (key := _shared(each)) not in made:
            made[key] = ready_params(each, tokenizer, limits)
    return [made[_shared(each)] for each in params]


def _shared(params: SamplingParams) -> tuple[object, ...]:
    """Returns a key that two params share if `ready_params` makes the same of both. It holds ids of
    objects, so it is good only as long as the params are alive."""
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
    return (*penalties, *(id(getattr(params, name)) for name in _READ))


def without_ready(params: SamplingParams) -> SamplingParams:
    """Returns params without the fields that `ready_params` has read: its result replaces them."""
    return msgspec.structs.replace(params, **dict.fromkeys(_READ))


_ADJUSTING = attrgetter(
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "allowed_token_ids", "bad_words"),
)
_UNADJUSTED = (0.0, 0.0, 1.0, None, None, None)


def adjustments(
    params: SamplingParams, tokenizer: Tokenizer, limits: Limits
) -> LogitsAdjustments | None:
    """Biases, penalties, allowed and banned ids; None where there are none. Raises
    InvalidRequest."""
    if _ADJUSTING(params) == _UNADJUSTED:
        return None
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


def _grammar(params: SamplingParams, limits: Limits) -> Grammar | None:
    wanted = params.structured_outputs
    if wanted is None:
        return None
    return wanted.grammar_within(limits.max_grammar_bytes, limits.grammar_kinds)


def _listed(ids: list[int], limits: Limits) -> tuple[int, ...]:
    for token in ids:
        if token >= limits.vocab_size:
            raise InvalidRequest(
                f"logprob_token_ids contains token id {token}; this model's ids are 0 to "
                f"{limits.vocab_size - 1}",
                param="logprob_token_ids",
            )
    return tuple(dict.fromkeys(ids))


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        setting = field.replace("_", "-")
        raise InvalidRequest(
            f"{field} holds {count} token ids; at most {most} are allowed (--max-{setting})",
            param=field,
        )


def _raw(encoded: bytes) -> Any:
    return msgspec.Raw(encoded)


_NONE = LogitsAdjustments()
_decoder = msgspec.msgpack.Decoder(LogitsAdjustments)
