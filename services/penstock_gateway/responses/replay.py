"""Stored responses as streams: their events, made from what there is of the answer.

A text's events have STEP characters each, so an event has the same number whenever it is asked for,
whichever process answers, and however far the answer has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.generate.chunked_reply import Pace
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.events import EventStream
from penstock_gateway.request.tokenising import loop_turn
from penstock_gateway.responses.items import (
    CustomCallItem,
    FunctionCallItem,
    OtherItem,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from penstock_gateway.responses.output import EventWriter, failure
from penstock_gateway.responses.output_kinds import ItemKinds, text_of
from penstock_gateway.responses.reply import ID_PREFIX, Response

STEP = 16
"""Characters of an event."""
LOOK_EVERY = 0.25
"""Seconds between looks at how far an answer has come."""
OPEN = ("queued", "in_progress")
"""Statuses of what hasn't ended."""

_LAST = {"completed": "completed", "failed": "failed"}
"""The last event, by status. That of a cancelled one is as of others that are incomplete: the SDKs
know no other."""


class KeptText(OutputText, tag_field="type", tag="output_text"):
    """A text of a stored response. Its log-probabilities are only passed on, and may be many: they
    stay JSON."""

    logprobs: list[msgspec.Raw] = msgspec.field(default_factory=list)  # type: ignore[assignment]


class KeptMessage(OutputMessage, tag_field="type", tag="message"):
    content: list[KeptText]  # type: ignore[assignment]


class KeptResponse(Response, tag_field="object", tag="response"):
    output: list[KeptMessage | OtherItem]  # type: ignore[assignment]


_RESPONSE = msgspec.json.Decoder(KeptResponse)


class LaterEvents(EventWriter):
    """Writes those events only whose number is above `after`."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    @property
    def latest(self) -> int:
        """The number of the latest one that was written; else `after`."""
        return max(self._after, self.number - 1)

    def _append(self, kind: str, fields: dict[str, Any]) -> None:
        if self.number > self._after:
            super()._append(kind, fields)
        else:
            self.number += 1

    def check_end(self) -> None:
        """Looks at a whole answer before its last event. Raises InvalidRequest if no event has the
        number `after`. Of one that failed, more may have been shown than was kept."""
        if self._after > self.number:
            raise InvalidRequest(
                f"starting_after is {self._after}; the response's last event has the number "
                f"{self.number}",
                param="starting_after",
                code="invalid_value",
            )

    def send_last(self, kind: str, **fields: Any) -> None:
        """Written always: what was shown before may have been lost to a failure."""
        self.number = max(self.number, self._after + 1)
        self.send(kind, **fields)


def writing(events: LaterEvents, response: Response) -> Iterator[bool]:
    """Writes a response's events in pieces; the last value tells whether they are all that there
    will be."""
    begun = msgspec.structs.replace(
        response,
        status="queued" if response.background else "in_progress",
        completed_at=None,
        output=[],
        usage=None,
        incomplete_details=None,
        error=None,
    )
    events.send("created", response=begun)
    if response.background:
        events.send("queued", response=begun)
    if response.status == "queued":
        yield False
        return
    events.send("in_progress", response=msgspec.structs.replace(begun, status="in_progress"))
    kinds = ItemKinds(events, response.id.removeprefix(ID_PREFIX))
    for index, item in enumerate(response.output):
        for _ in _writing_item(kinds, index, item):
            yield False
    if response.status in OPEN:
        yield False
        return
    if response.status == "completed":
        events.check_end()
    events.send_last(_LAST.get(response.status, "incomplete"), response=response)
    yield True


def _writing_item(kinds: ItemKinds, index: int, item: OutputItem) -> Iterator[None]:
    """Writes the events of an item as far as it has come, in pieces."""
    written, logprobs = kinds.again(index, item), []
    if isinstance(item, OutputMessage):
        logprobs = [each for part in item.content for each in part.logprobs]
    written.begin()
    text, is_open = text_of(item), item.status == "in_progress"
    if is_open:
        text = text[: len(text) // STEP * STEP]
    for start in range(0, len(text), STEP):
        last = start + STEP >= len(text) and not is_open
        written.add(text[start : start + STEP], logprobs if last else [])
        yield
    if not is_open:
        written.finish(item.status)
        yield


async def follow(
    find: Callable[[], Awaitable[str | None]],
    after: int,
    stream: EventStream,
    leaving: Callable[[], bool],
) -> None:
    """Writes the events above the number `after` of a stored response, until it ends, or this
    process leaves. find: the response by now, as JSON; None: it is gone."""
    known = None
    while True:
        stream.failure = partial(failure, number=after + 1)
        found = await find()
        if found is None:
            raise HTTPError(404, "the response was deleted", code="response_not_found")
        is_whole = False
        if found != known:
            known = found
            events = LaterEvents(after)
            async with loop_turn():
                pace, response = Pace(), _RESPONSE.decode(found)
                for written in writing(events, response):
                    is_whole = written
                    await pace.rest()
            after = events.latest
            if events.out:
                await stream.write(events.splices.spliced(events.out), last=is_whole)
        if is_whole:
            return
        if leaving():
            # The client goes on with the number that it has seen last.
            await stream.write(b"", last=True)
            return
        await asyncio.sleep(LOOK_EVERY)


class _Event(msgspec.Struct):
    type: str
    output_index: int = -1
    item: OutputItem | None = None
    delta: str = ""
    response: msgspec.Raw = msgspec.Raw()


_EVENT = msgspec.json.Decoder(_Event)


class AnswerSoFar:
    """What a stream's events have shown of an answer."""

    def __init__(self) -> None:
        self._unread: list[bytes] = []
        self._texts: dict[int, list[str]] = {}
        self._items: list[OutputItem] = []
        self.origin = ""
        """The origin by which the answer is resumed, as in the events' ids; empty: not known."""
        self.whole: bytes | None = None
        """The response, once it has ended, as JSON."""

    def take(self, data: bytes) -> None:
        """The next bytes of the stream."""
        self._unread.append(data)
        if b"\n" not in data:
            return  # In the middle of an event, which may be large.
        *events, unread = b"".join(self._unread).split(b"\n\n")
        self._unread = [unread]
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    self._tell(_EVENT.decode(line[6:]))
                elif line.startswith(b"id: "):
                    self.origin = line[4:].partition(b".")[0].decode()

    def _tell(self, event: _Event) -> None:
        index = event.output_index
        match event.type.removeprefix("response."):
            case "output_item.added" if event.item is not None:
                self._items.append(event.item)
                self._texts[index] = []
            case "output_item.done" if event.item is not None:
                self._items[index] = event.item
                del self._texts[index]
            case "completed" | "incomplete" | "failed":
                self.whole = bytes(event.response)
            case "reasoning_summary_text.delta":
                """The content has the same."""
            case kind if kind.endswith(".delta") and index in self._texts:
                self._texts[index].append(event.delta)

    @property
    def items(self) -> list[OutputItem]:
        """The answer's items as far as they have come."""
        return [
            _with_text(item, "".join(self._texts[index])) if index in self._texts else item
            for index, item in enumerate(self._items)
        ]


def _with_text(item: OutputItem, text: str) -> OutputItem:
    match item:
        case OutputMessage():
            return msgspec.structs.replace(item, content=[OutputText(text)])
        case ReasoningItem():
            return msgspec.structs.replace(item, content=[ReasoningText(text)])
        case FunctionCallItem():
            return msgspec.structs.replace(item, arguments=text)
        case CustomCallItem():
            return msgspec.structs.replace(item, input=text)
    return item
