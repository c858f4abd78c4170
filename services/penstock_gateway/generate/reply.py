"""What the replies of the generating endpoints have in common: their head, their choices, and what
they show of the request's tokens besides the answer's text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.client.placement import fingerprint_name
from penstock.errors import InvalidRequest
from penstock.protocol.common import TokenLogprobs
from penstock.request.receipt import Receipt
from penstock.request.sampling_params import MAX_LOGPROBS
from penstock_gateway.generate.timeline import RequestTimeline
from penstock_gateway.request.fields import GenerateFields

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.client.placement import Computing
    from penstock.protocol.common import TokenLogprobs
    from penstock_gateway.http.errors import HTTPError

PromptLogprobsSource = Callable[[int], list[TokenLogprobs | None] | None]
"""The log-probabilities of a prompt's tokens, by the prompt's index; from the first delta on."""


@dataclass(frozen=True, slots=True)
class EchoOptions:
    """What the client wants to see of tokens."""

    logprobs: bool = False
    """Log-probabilities of the answer's tokens."""
    as_ids: bool = False
    """Tokens are written as token_id:5."""
    token_ids: bool = False
    """The ids of prompt and answer."""
    prompt_logprobs: int | None = None
    """How many alternatives to show for each of the prompt's tokens; None: no log-probabilities."""
    echo: bool = False
    """The prompt comes before the answer."""

    @property
    def prompt(self) -> bool:
        """Whether anything is shown of the prompt's tokens."""
        return self.token_ids or self.echo or self.prompt_logprobs is not None

    hides_special: bool = True
    """The answer's text leaves special tokens out."""

    @classmethod
    def of(cls, request: GenerateFields, *, logprobs: bool) -> EchoOptions:
        return cls(
            logprobs=logprobs,
            as_ids=bool(request.return_tokens_as_token_ids),
            token_ids=bool(request.return_token_ids),
            prompt_logprobs=request.prompt_logprobs,
            echo=bool(request.echo),
            hides_special=request.skip_special_tokens is not False,
        )


def no_prompt_logprobs(prompt: int) -> None:
    """A PromptLogprobsSource that knows of no prompt."""


def check_prompt_logprobs(request: GenerateFields) -> None:
    """Raises InvalidRequest for a count out of range, and for one with a stream."""
    count = request.prompt_logprobs
    if count is None:
        return
    if not 0 <= count <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"prompt_logprobs must be a whole number in [0, {MAX_LOGPROBS}], not {count}",
            param="prompt_logprobs",
        )
    if request.stream:
        raise InvalidRequest(
            f"prompt_logprobs is {count}; with stream: true it must be null",
            param="prompt_logprobs",
        )


def check_listed(request: GenerateFields, *, logprobs: bool) -> None:
    """Raises InvalidRequest for logprob_token_ids of a request that shows no log-probabilities of
    its output. logprobs: whether it shows some."""
    if request.logprob_token_ids and not logprobs:
        raise InvalidRequest(
            "logprob_token_ids needs logprobs, which is true in chat and a number in completions",
            param="logprob_token_ids",
        )


@dataclass(slots=True)
class ChoiceOutput:
    """A choice of an unstreamed reply, which grows with each delta."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    begun: int | None = None
    """When its first delta came, by time.perf_counter_ns."""

    def add(self, delta: SequenceDelta) -> None:
        """Takes the choice's next delta."""
        if self.begun is None:
            self.begun = time.perf_counter_ns()
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


encoder = msgspec.json.Encoder()

_LINE_ENDS = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}
"""Characters beyond ASCII at which Unicode ends a line, as UTF-8, and their escapes in JSON."""


def one_line(written: bytes) -> bytes:
    """JSON that every reader of lines takes for one line: httpx's `iter_lines` and Python's
    `splitlines` end one at more characters than line feeds."""
    for character, escape in _LINE_ENDS.items():
        written = written.replace(character, escape)
    return written


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """cached_tokens: found in the KV cache, so that they were not computed again."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """reasoning_tokens: of thoughts that were separated, their closing tag included; 0 where that
    tag is no token of its own.  accepted_prediction_tokens, rejected_prediction_tokens: drafted
    tokens that became a part of the output, and that did not, where the request has a prediction;
    0 otherwise.  audio_tokens: always 0."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class UsageInfo(msgspec.Struct, frozen=True):
    """Tokens of a whole HTTP request: each prompt once, the output of every choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int) -> UsageInfo:
        return cls(prompt, completion, prompt + completion, PromptTokensDetails(cached))

    def with_reasoning(self, tokens: int) -> UsageInfo:
        """Returns the usage with `tokens` of the output's counted as thoughts."""
        details = msgspec.structs.replace(self.completion_tokens_details, reasoning_tokens=tokens)
        return msgspec.structs.replace(self, completion_tokens_details=details)

    def with_predicted(self, predicted: tuple[int, int] | None) -> UsageInfo:
        """This usage, with how many drafted tokens became output and how many did not; None changes
        nothing."""
        if predicted is None:
            return self
        accepted, rejected = predicted
        details = msgspec.structs.replace(
            self.completion_tokens_details,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=rejected,
        )
        return msgspec.structs.replace(self, completion_tokens_details=details)


UsageField = UsageInfo | None | msgspec.UnsetType
"""In a chunk: absent unless asked for, null until it is due."""


def nobody() -> Computing | None:
    """What computes an answer, before anything does."""
    return None


@dataclass(slots=True, kw_only=True)
class ReplyHead:
    """What every chunk of a reply repeats. created: Unix time, seconds.  draw: what ids within the
    reply follow from; empty: from chance.  adapter: digest of the one that is applied; empty: none.
    computed: tells what the answer is computed with, as far as it is known."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    draw: bytes = b""
    adapter: str = ""
    computed: Callable[[], Computing | None] = nobody
    _named: tuple[str, str] = ("", "")

    @property
    def computing(self) -> Computing | None:
        """What the answer is computed with; None: not known yet."""
        return self.computed()

    @property
    def system_fingerprint(self) -> str | None:
        """The name of `computing`, and of the adapter. It stays, once there is some output."""
        computing = self.computed()
        if computing is None:
            return None
        if self._named[0] != computing.fingerprint:
            name = fingerprint_name(computing.fingerprint, self.adapter)
            self._named = (computing.fingerprint, name)
        return self._named[1]


TimelineField = RequestTimeline | msgspec.UnsetType
"""Absent unless asked for; not a field of OpenAI's."""

ReceiptField = Receipt | msgspec.UnsetType
"""A signed receipt; absent unless asked for, and not a field of OpenAI's."""


class ReplyFormat(Protocol):
    """How an endpoint writes what its request's sequences gain."""

    shows_aborts: bool
    """Whether there is a word for the end of a sequence that an operator has aborted, as when a
    model is paused: it ends with what it has.  Else that is an error."""

    def begin(self, source: PromptLogprobsSource) -> None:
        """Called before anything else; again where nothing of it was sent, and something else than
        before computes the answer. source: of the prompts' log-probabilities."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        """Appends what a choice's stream begins with. begun: what is used before its first
        token."""

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        """Appends the events of one delta; nothing when it has nothing to show."""

    def place(self, out: bytearray, choice: int) -> None:
        """Called when all of a choice's delta has been appended, also what it was split into."""

    @property
    def numbered(self) -> int:
        """The number of the next event; 0 where they have none."""

    def renumber(self, number: int) -> None:
        """The next event has that number, whatever was written: other pieces of the same."""

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        """Appends the chunk that holds the usage and no choices."""

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        """Appends the chunk that holds the timeline and no choices."""

    async def ends(self, usage: UsageInfo) -> None:
        """Called before `end`: writes in turns what may be long of it."""

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        """Appends what a stream ends with."""

    def failed(self, error: HTTPError) -> bytes:
        """What a stream ends with that fails."""

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        """The unstreamed reply, as JSON, in pieces. What is long is written in turns."""

    def plain_chunk(self, choice: int, usage: UsageField) -> PlainChunk | None:
        """What from now on writes the deltas of a choice in place of `delta`, as long as they end
        nothing; None where there is more to show of them than text."""

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        """Whether the events of deltas take long to write: they are then written in turns."""

    async def ahead(self, choice: int) -> None:
        """Called before a choice's next delta where that may be large: writes in turns what doesn't
        depend on the delta."""

    def spliced(self, out: bytearray) -> list[bytes]:
        """The pieces of what was appended to `out`. What was written ahead has only a mark in
        there."""


class PlainChunk(Protocol):
    """Writes events that differ only in one text."""

    @property
    def around(self) -> tuple[bytes, bytes]:
        """What stands before and after the text's JSON in each event."""

    def event(self, text: str) -> bytes:
        """The event that says `text`."""


class Placeless:
    """The part of a ReplyFormat whose events don't say how far they are, and whose end is short."""

    def place(self, out: bytearray, choice: int) -> None:
        """Does nothing."""

    @property
    def numbered(self) -> int:
        """Mostly, events have no numbers."""
        return 0

    def renumber(self, number: int) -> None:
        """Does nothing."""

    async def ends(self, usage: UsageInfo) -> None:
        """Does nothing: mostly, what a stream ends with is short."""


class WrittenAtOnce(Placeless):
    """The parts of a ReplyFormat that shows nothing of a token but its text."""

    def plain_chunk(self, choice: int, usage: UsageField) -> PlainChunk | None:
        return None

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        return False

    async def ahead(self, choice: int) -> None:
        """Does nothing: nothing comes before a choice."""

    def spliced(self, out: bytearray) -> list[bytes]:
        return [bytes(out)]


def append_event(out: bytearray, chunk: msgspec.Struct) -> None:
    """Appends a chunk as one server-sent event."""
    out += b"data: "
    encoder.encode_into(chunk, out, -1)
    out += b"\n\n"
