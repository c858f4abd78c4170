"""A generating request once its body was read: checked and tokenised, then ready to be answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.client.ready_params import ReadyParams
    from penstock.media.item_names import PromptMedia
    from penstock.request.sampling_params import SamplingParams
    from penstock_gateway.generate.replay import ReplayedRequest
    from penstock_gateway.generate.reply import ReplyFormat, ReplyHead
    from penstock_gateway.generate.reply_spec import ReplySpec
    from penstock_gateway.generate.search import Search
    from penstock_gateway.models.backend import EngineInfo

Blame = Callable[[InvalidRequest], InvalidRequest]
BlameAgain = Callable[[InvalidRequest], Awaitable[InvalidRequest | None]]


def unchanged(error: InvalidRequest) -> InvalidRequest:
    """The Blame of a request without structured output: returns the error as it is."""
    return error


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that was checked and tokenised."""

    prompt_token_ids: list[list[int]]
    """Token ids of each prompt."""
    params: list[SamplingParams]
    """Sampling parameters of each prompt."""
    reply: ReplySpec
    """How its reply is written."""
    blame: Blame = unchanged
    """Turns an engine core's error about a structured output into one that names the body's field
    which asked for it."""
    search: Search | None = None
    """The beam search that finds the answers; None if they are sampled."""
    media: PromptMedia | None = None
    """The media of the only prompt; None for prompts of text."""
    prediction: Sequence[int] = ()
    """Token ids that each output is expected to resemble."""
    reading: str = ""
    """What the answers' text is read by; empty: it is shown as it comes."""
    ready: Sequence[ReadyParams] = ()
    """What each prompt's parameters ask of logits and grammars; empty: that has yet to be made."""
    basis: bytes | None = None
    """AnswerBasis's digest, if that was made along with it."""
    blame_again: BlameAgain | None = None
    """Does what `blame` does for an error of which the body has to be looked at again; None once
    that is gone."""

    def job(self, head: ReplyHead, engine: EngineInfo) -> Job:
        """The request, ready to be answered. head: what every chunk of the reply repeats."""
        return Job(
            self.prompt_token_ids,
            self.params,
            self.reply.format(head, engine),
            head,
            blame=self.blame,
            search=self.search,
            media=self.media,
            prediction=self.prediction,
            reading=self.reading,
            ready=self.ready,
            blame_again=self.blame_again,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is ready to be answered. Fields as in PreparedRequest, and these."""

    prompt_token_ids: list[list[int]]
    params: list[SamplingParams]
    reply: ReplyFormat
    """Writes its reply."""
    head: ReplyHead
    """What every chunk of the reply repeats."""
    blame: Blame = unchanged
    search: Search | None = None
    media: PromptMedia | None = None
    prediction: Sequence[int] = ()
    reading: str = ""
    ready: Sequence[ReadyParams] = ()
    blame_again: BlameAgain | None = None
    held: str | None = None
    """The only fingerprint that it may be computed with; None: whatever takes it."""
    replay: ReplayedRequest | None = None
    """What makes the answer the same as an earlier one's; None for an answer by itself."""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompt_token_ids))
