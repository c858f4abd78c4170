"""BeamSearchParams, with names as in vLLM, and the answers of beam searches and best_of."""

from __future__ import annotations

import msgspec

from penstock.errors import InvalidRequest
from penstock.protocol.common import FinishReason, TokenLogprobs
from penstock.request.sampling_params import SamplingParams, check_whole


class Hypothesis(msgspec.Struct, kw_only=True):
    """token_ids: the token that ended it included.  cumulative_logprob: of all of them, of the raw
    distribution.  score: what it was ranked by.  logprobs: one for each token where asked for.
    stop_reason, error: as in SequenceDelta.
    """

    token_ids: list[int]
    text: str
    cumulative_logprob: float
    score: float
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    error: str | None = None


MAX_BEAM_WIDTH = 128
MAX_LENGTH_PENALTY = 100.0


class BeamSearchParams(msgspec.Struct, kw_only=True, frozen=True):
    """Ranges are checked when it is made; InvalidRequest names the field.

    beam_width: beams that are followed, and hypotheses that are returned.
    length_penalty: a hypothesis' score is its log-probability / its length ** length_penalty.
    temperature: as vLLM has it, without effect: beams are ranked by the raw distribution.
    logprobs: alternatives to report for each token, or None.
    The rest as in SamplingParams.
    """

    beam_width: int
    max_tokens: int = 16
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool = True
    logprobs: int | None = None

    def __post_init__(self) -> None:
        check_whole("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH)
        check_whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        penalty = self.length_penalty
        number = isinstance(penalty, (int, float)) and not isinstance(penalty, bool)
        if not number or not abs(penalty) <= MAX_LENGTH_PENALTY:
            raise InvalidRequest(
                f"length_penalty must be a number in [{-MAX_LENGTH_PENALTY:g}, "
                f"{MAX_LENGTH_PENALTY:g}], not {penalty!r}",
                param="length_penalty",
            )
        self.step()

    def step(self) -> SamplingParams:
        """What each beam is asked for, at every step: one token. Raises InvalidRequest."""
        return SamplingParams(
            max_tokens=1,
            temperature=0.0 if self.temperature == 0 else self.temperature,
            seed=0,
            logprobs=self.logprobs,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            ignore_eos=True,
        )
