"""What beam_search returns. Names and shapes as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.beam_hypothesis import Hypothesis
from penstock.llm.assembly import by_token
from penstock.llm.outputs import Logprob
from penstock.protocol.common import FinishReason
from penstock.text.tokenizer import Tokenizer


@dataclass(slots=True)
class BeamSearchSequence:
    """One hypothesis. tokens: the prompt's and its own, the one that ended it included; text: of
    its own.  score: cum_logprob / number of its own tokens ** length_penalty.
    logprobs: as CompletionOutput's, where they were asked for."""

    tokens: list[int]
    text: str
    cum_logprob: float
    score: float
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The hypotheses of one prompt, best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


def beam_output(
    prompt_token_ids: list[int], hypotheses: list[Hypothesis], tokenizer: Tokenizer
) -> BeamSearchOutput:
    """The hypotheses of a prompt's token ids."""
    return BeamSearchOutput([_sequence(prompt_token_ids, each, tokenizer) for each in hypotheses])


def _sequence(
    prompt_token_ids: list[int], found: Hypothesis, tokenizer: Tokenizer
) -> BeamSearchSequence:
    logprobs = found.logprobs
    if logprobs is not None:
        shown = [
            by_token(token, entry, tokenizer)
            for token, entry in zip(found.token_ids, logprobs, strict=True)
        ]
    return BeamSearchSequence(
        tokens=[*prompt_token_ids, *found.token_ids],
        text=found.text,
        cum_logprob=found.cumulative_logprob,
        score=found.score,
        finish_reason=found.finish_reason,
        stop_reason=found.stop_reason,
        logprobs=None if logprobs is None else shown,
    )
