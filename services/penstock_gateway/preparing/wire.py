"""What a gateway and its preparers tell one another: a length of four bytes, then msgpack."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.client.ready_params import ReadyParams
from penstock.protocol.media import Media
from penstock.request.sampling_params import SamplingParams

MAX_FRAME = 512 << 20
"""Bytes. A body is far smaller; pictures that come with it may be as large."""

ROOM = 1 << 16
"""Bytes of a message besides its body, at most, and of what it is put together in."""


class ErrorData(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception that becomes an answer. Fields as its class has them."""

    kind: str
    """Name of its class."""
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float = 0.0
    status: int = 0
    type: str = ""
    headers: list[tuple[str, str]] = []


class OpenBody(msgspec.Struct, frozen=True, tag=True):
    """A body, to be decoded and checked. Answered by OpenedBody or FailedBody."""

    endpoint: int
    """The endpoint's place in the list of all."""
    body: bytes
    headers: list[tuple[bytes, bytes]]
    """The HTTP request's headers."""
    tenant: str
    background: bool
    """Whether nobody waits for the answer."""
    digested: bool
    """The answer may be asked for again, so the body's digest is wanted."""
    cpu: float
    """Seconds of processor time that all work on this body may take."""


class OpenedBody(msgspec.Struct, frozen=True, tag=True):
    """A body that is as it should be."""

    light: bytes
    """JSON of the request's fields but for those that are large."""
    dropped: list[str]
    """The names of these."""
    digest: bytes | None = None


class PrepareBody(msgspec.Struct, frozen=True, tag=True):
    """The request that was opened, to be prepared. Answered by PreparedBody or FailedBody."""

    model: int
    """The model's place among the gateway's."""
    id: str
    name: str
    """The model's, as replies have it."""
    created: int
    draw: bytes
    adapter: str
    deadline: float | None
    seed: int | None
    """Takes the place of the request's."""
    basis: str | None
    """Names the model in the digest of all that an answer depends on; None: that isn't wanted."""
    whole: bool
    """The sampling parameters are wanted as they are, with what ReadyParams has been made of."""
    cpu: float
    """Seconds of processor time more, for what a model of long contexts takes."""
    blamed: ErrorData | None = None
    """An error of the engine core's, which is to come back in the words of the request. Then the
    answer is FailedBody."""


class PreparedBody(msgspec.Struct, frozen=True, tag=True):
    """A prepared request. Fields as PreparedRequest has them, unless they say otherwise."""

    prompt_token_ids: list[bytes]
    """int32, in the machine's order of bytes."""
    params: list[SamplingParams]
    """Different ones."""
    ready: list[ReadyParams]
    """What each of `params` asks of logits and grammars."""
    which: list[int]
    """The place in `params` of each prompt's."""
    reply: bytes
    """The ReplySpec."""
    reply_is_json: bool
    """It is JSON, as there are whole numbers beyond 64 bits in it, and not msgpack."""
    searches: bool
    media: Media | None
    in_front: int
    prediction: bytes
    reading: str
    basis: bytes | None
    blames: InvalidRequestName | None
    """The words for an error about the answer's form."""
    notes: list[str] = []
    """What the reply's header is to say, see http.notes."""


class InvalidRequestName(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of an InvalidRequest about `structured_outputs`."""

    param: str | None
    before: str
    """What stands before its reason."""


class HandleWhole(msgspec.Struct, frozen=True, tag=True):
    """A whole request, whose reply is short. Answered by HandledWhole or FailedBody."""

    endpoint: int
    body: bytes
    headers: list[tuple[bytes, bytes]]
    method: str
    path: str
    parameters: bytes
    """JSON of the path's and of the query's."""
    id: str
    tenant: str
    background: bool
    cpu: float


class HandledWhole(msgspec.Struct, frozen=True, tag=True):
    """The response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    pieces: list[bytes]


class WeighBody(msgspec.Struct, frozen=True, tag=True):
    """A body of which the largest field is wanted. Answered by WeighedBody or FailedBody."""

    body: bytes
    cpu: float


class WeighedBody(msgspec.Struct, frozen=True, tag=True):
    field: str
    """Empty: there is none, as the body is no object."""
    bytes: int


class FailedBody(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request that can't be prepared."""

    error: ErrorData


class HomeQuestion(msgspec.Struct, frozen=True, tag=True):
    """What a preparer needs of its gateway. Answered by HomeAnswer."""

    number: int
    what: str
    """Name of one of `answers.ANSWERS`."""
    payload: bytes


class HomeAnswer(msgspec.Struct, frozen=True, tag=True):
    number: int
    payload: bytes = b""
    error: ErrorData | None = None


class Grown(msgspec.Struct, frozen=True, tag=True):
    """Comes before the last answer: the process has grown large, and ends."""


PreparerTask = OpenBody | PrepareBody | HandleWhole | WeighBody
ToPreparer = PreparerTask | HomeAnswer
FromPreparer = (
    OpenedBody | PreparedBody | HandledWhole | WeighedBody | FailedBody | HomeQuestion | Grown
)

to_preparer = msgspec.msgpack.Decoder(ToPreparer)
from_preparer = msgspec.msgpack.Decoder(FromPreparer)
encode = msgspec.msgpack.Encoder().encode


def encoded_task(task: ToPreparer) -> bytes:
    """Returns the message's bytes. Raises MemoryError where there is no room for a body's copy:
    msgspec 0.22 would write to where there is no memory, which ends the process."""
    bytes(2 * len(getattr(task, "body", b"")) + ROOM)
    return encode(task)


def encoded_spec(spec: msgspec.Struct) -> tuple[bytes, bool]:
    """A ReplySpec's bytes, and whether they are JSON: msgpack's whole numbers have 64 bits."""
    try:
        return encode(spec), False
    except OverflowError:
        return msgspec.json.encode(spec), True


def decoded_spec(data: bytes, kind: type[Any], *, is_json: bool) -> Any:
    """A ReplySpec of this type, from what `encoded_spec` has made of it."""
    return (msgspec.json if is_json else msgspec.msgpack).decode(data, type=kind)
