"""Turns what sequences gain into vllm.GenerateResponse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from penstock_gateway.generate.chunked_reply import MANY, Pace, paced, steps
from penstock_gateway.generate.logprobs import LOWEST
from penstock_gateway.generate.reply import PromptLogprobsSource, WrittenAtOnce, no_prompt_logprobs
from penstock_gateway.generate.reply_spec import ReplySpec
from penstock_rpc.frames import append_frame, failed_frame
from penstock_rpc.protos.inference_pb2 import (
    CandidateTokenInfo,
    FinishInfo,
    GenerateResponse,
    PromptInfo,
    SequenceOutput,
)
from penstock_rpc.vllm.generate_request import ShownParts

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.protocol.common import TokenLogprobs
    from penstock_gateway.generate.reply import (
        ChoiceOutput,
        ReplyHead,
        TimelineField,
        UsageField,
        UsageInfo,
    )
    from penstock_gateway.generate.timeline import RequestTimeline
    from penstock_gateway.http.errors import HTTPError
    from penstock_gateway.models.backend import EngineInfo

_REASONS = {
    "length": FinishInfo.FinishReason.LENGTH,
    "stop": FinishInfo.FinishReason.STOP,
    "repetition": FinishInfo.FinishReason.STOP,
    "abort": FinishInfo.FinishReason.ABORTED,
}


class GenerateFormat(WrittenAtOnce):
    """A ReplyFormat of one prompt's sequences; a stream is frames (see rpc.frames).

    What is shown of many tokens is written in turns, each part as a message of its own: the bytes
    of several messages, one after the other, are a message that holds what all of them hold.
    """

    shows_aborts = True

    def __init__(self, shown: ShownParts, prompt_token_ids: list[int]) -> None:
        self._shown = shown
        self._prompt_token_ids = prompt_token_ids
        self._source: PromptLogprobsSource = no_prompt_logprobs
        self._told_prompt = False
        self._prompt: bytes | None = None
        """The message's part about the prompt, once it is written."""
        self._counts: dict[int, int] = {}
        self._last: dict[int, int] = {}
        """Each sequence's newest token id."""

    def begin(self, source: PromptLogprobsSource) -> None:
        self._source = source

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        """The first response waits for the first token, as the prompt's log-probabilities do."""

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        message = GenerateResponse()
        output = message.outputs
        self._fill(output, choice, delta.text, delta.token_ids)
        self._show(output, delta.token_ids, delta.logprobs)
        if delta.finish_reason is not None:
            self._finish(output.finish_info, choice, delta.finish_reason, delta.stop_reason)
        elif not output.text and not output.num_tokens and self._told_prompt:
            return
        written = message.SerializeToString()
        if not self._told_prompt:
            self._told_prompt = True
            if self._prompt is None:
                self._prompt = b"".join(self._prompt_parts())
            written, self._prompt = written + self._prompt, b""
        append_frame(out, written)

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        shown, tokens = self._shown, 0
        if shown.asked_logprobs is not None:
            tokens = sum(len(delta.token_ids) for delta in deltas)
        if shown.asked_prompt_logprobs is not None and not self._told_prompt:
            tokens += len(self._prompt_token_ids)
        return tokens > MANY

    async def ahead(self, choice: int) -> None:
        if self._prompt is None:
            async with paced(len(self._prompt_token_ids)) as pace:
                self._prompt = b"".join(
                    [part async for part in _in_turns(self._prompt_parts(), pace)]
                )

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        """Counts stand in the messages."""

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        """Adds nothing: the message has no field for a timeline."""

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        """A stream just ends."""

    def failed(self, error: HTTPError) -> bytes:
        return failed_frame(error)

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        (choice,) = choices
        ids, logprobs = choice.token_ids, choice.logprobs or None
        message = GenerateResponse()
        self._fill(message.outputs, 0, "".join(choice.texts), ids)
        self._finish(message.outputs.finish_info, 0, choice.finish_reason or "", choice.stop_reason)
        parts = chain(self._shown_parts(ids, logprobs), self._prompt_parts())
        async with paced(len(ids) + len(self._prompt_token_ids)) as pace:
            later = [part async for part in _in_turns(parts, pace)]
        return [message.SerializeToString(), *later]

    def _fill(
        self,
        output: SequenceOutput,
        choice: int,
        text: str,
        token_ids: list[int],
    ) -> None:
        """Fills all fields but those about single tokens."""
        shown = self._shown
        output.index = choice
        output.num_tokens = len(token_ids)
        if token_ids:
            self._counts[choice] = self._counts.get(choice, 0) + len(token_ids)
            self._last[choice] = token_ids[-1]
        if shown.text:
            output.text = text
        if shown.token_ids:
            output.token_ids.extend(token_ids)

    def _show(
        self,
        output: SequenceOutput,
        token_ids: list[int],
        logprobs: Sequence[TokenLogprobs] | None,
    ) -> None:
        shown = self._shown
        if logprobs is None or not (shown.logprobs or shown.candidates):
            return
        for token, at in zip(token_ids, logprobs, strict=False):
            if shown.logprobs:
                output.logprobs.append(max(at.logprob, LOWEST))
                output.ranks.append(_rank(token, at))
            if shown.candidates:
                output.candidate_tokens.append(_candidates(at, shown.candidates))

    def _finish(
        self, info: FinishInfo, choice: int, reason: str, stop_reason: int | str | None
    ) -> None:
        info.num_output_tokens = self._counts.get(choice, 0)
        info.finish_reason = _REASONS.get(reason, FinishInfo.FinishReason.ABORTED)
        if reason != "stop":
            return
        if isinstance(stop_reason, str):
            info.stop_string = stop_reason
        elif stop_reason is not None:
            info.stop_token_id = stop_reason
        elif choice in self._last:
            info.eos_token_id = self._last[choice]

    def _shown_parts(
        self, token_ids: list[int], logprobs: Sequence[TokenLogprobs] | None
    ) -> Iterator[bytes]:
        """Yields the parts of the message about an output's tokens."""
        if self._shown.asked_logprobs is None or logprobs is None:
            return
        for begin, end in steps(len(token_ids)):
            part = GenerateResponse()
            self._show(part.outputs, token_ids[begin:end], logprobs[begin:end])
            yield part.SerializeToString()

    def _prompt_parts(self) -> Iterator[bytes]:
        """Yields the parts of the message about the prompt."""
        shown, ids = self._shown, self._prompt_token_ids
        info = PromptInfo(num_prompt_tokens=len(ids))
        if shown.prompt_token_ids:
            info.token_ids.extend(ids)
        yield GenerateResponse(prompt_info=info).SerializeToString()
        found = self._source(0) if shown.asked_prompt_logprobs is not None else None
        for begin, end in steps(min(len(ids), len(found or ()))):
            info = PromptInfo()
            for token, at in zip(ids[begin:end], (found or ())[begin:end], strict=True):
                self._show_prompt(info, token, at)
            yield GenerateResponse(prompt_info=info).SerializeToString()

    def _show_prompt(self, info: PromptInfo, token: int, at: TokenLogprobs | None) -> None:
        shown = self._shown
        if shown.prompt_logprobs:
            info.logprobs.append(0.0 if at is None else max(at.logprob, LOWEST))
            info.ranks.append(0 if at is None else _rank(token, at))
        if shown.prompt_candidates:
            info.candidate_tokens.append(
                CandidateTokenInfo() if at is None else _candidates(at, shown.prompt_candidates)
            )


async def _in_turns(parts: Iterator[bytes], pace: Pace) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
        await pace.rest()


def merged(messages: Iterable[bytes]) -> list[bytes]:
    """Responses of one stream that wait together, as few that say the same."""
    found: list[GenerateResponse] = []
    growing: dict[int, GenerateResponse] = {}
    for each in messages:
        later = GenerateResponse.FromString(each)
        earlier = growing.get(later.outputs.index)
        if earlier is None:
            found.append(later)
            growing[later.outputs.index] = later
        else:
            _add(earlier.outputs, later.outputs)
    return [message.SerializeToString() for message in found]


def _add(earlier: SequenceOutput, later: SequenceOutput) -> None:
    earlier.text += later.text
    earlier.num_tokens += later.num_tokens
    earlier.token_ids.extend(later.token_ids)
    earlier.logprobs.extend(later.logprobs)
    earlier.ranks.extend(later.ranks)
    earlier.candidate_tokens.extend(later.candidate_tokens)
    if later.HasField("finish_info"):
        earlier.finish_info.CopyFrom(later.finish_info)


def _rank(token: int, at: TokenLogprobs) -> int:
    """The token's rank: 1 for the most likely; 0 if it isn't among the known ones."""
    return at.top_ids.index(token) + 1 if token in at.top_ids else 0


def _candidates(at: TokenLogprobs, count: int) -> CandidateTokenInfo:
    likeliest = zip(at.top_ids[:count], at.top_logprobs, strict=False)
    return CandidateTokenInfo(
        tokens=[
            CandidateTokenInfo.TokenInfo(id=token, logprob=max(logprob, LOWEST), rank=rank)
            for rank, (token, logprob) in enumerate(likeliest, start=1)
        ]
    )


class GenerateSpec(ReplySpec, frozen=True):
    """Fields as GenerateFormat takes them."""

    shown: ShownParts
    prompt_token_ids: list[int]

    def format(self, head: ReplyHead, engine: EngineInfo) -> GenerateFormat:
        return GenerateFormat(self.shown, self.prompt_token_ids)
