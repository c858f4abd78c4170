"""What `/score` and `/rerank` compare: texts, pictures, or both, in the forms of vLLM's and Jina's
APIs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource
from penstock.media.words import WORDS
from penstock.model.pooling_config import PairTemplate
from penstock_gateway.pooling.messages import TEXTS, PoolMessage, PoolPart, one_of, read_part
from penstock_gateway.request.dialect import moved
from penstock_gateway.request.input_texts import check_count

SCHEME = 64
"""Characters of a URL that its scheme ends in."""
MAX_PARTS = 1 << 14
"""Parts of all inputs of a list."""
_PART = re.compile(r"messages\[(\d+)\]\.content\[(\d+)\]")
_OF_A_CHAT = ("messages", "input", "prompt")


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text, a picture (a URL, a data: URI or base64), both, or parts as chats have them."""

    text: str | None = None
    image: str | None = None
    content: list[PoolPart] | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """One input. where: what the body calls it.  parts: by what the body calls each, in order.
    plain: whether it is a bare text."""

    where: str
    parts: dict[str, PoolPart]
    plain: bool = False

    def text(self) -> str:
        """Returns the input's text, for a model that scores texts. Raises InvalidRequest for an
        input with anything else."""
        texts, pictures = self._read()
        if pictures:
            given = pictures[0]
            raise InvalidRequest(
                f"{given.where} is a {WORDS[given.kind]}; this model scores texts",
                param=given.where,
                code="unsupported_value",
            )
        return "\n".join(texts)

    def alone(self) -> str | MediaSource:
        """Returns the one text or picture, for a model whose input is either. Raises InvalidRequest
        for both."""
        return one_of(*self._read(), self.where)

    def check(self) -> None:
        """Raises InvalidRequest for a part that is neither a text nor an item of media."""
        self._read()

    def label(self) -> str:
        """The input's texts, one a line; empty where it has none."""
        return "\n".join(text for part in self.parts.values() if (text := _said(part)))

    def _read(self) -> tuple[list[str], list[MediaSource]]:
        texts: list[str] = []
        pictures: list[MediaSource] = []
        for place, part in self.parts.items():
            read_part(part, place, texts, pictures)
        return texts, pictures


@dataclass(frozen=True, slots=True)
class ScoredChat:
    """What a model is shown of `given`. places: what the body calls each part of the last
    message; empty for what isn't the body's."""

    messages: list[PoolMessage]
    given: Sequence[Scored]
    places: Sequence[str] = field(default=())

    def in_the_bodys_terms(self, error: InvalidRequest) -> InvalidRequest:
        """The error of a conversation that no client knows, by the names of its inputs."""
        param = error.param or ""
        found = _PART.match(param)
        if found is not None and int(found[1]) == len(self.messages) - 1:
            place = self.places[int(found[2])]
            return error.renamed(lambda path: moved(path, found[0], place))
        if param.partition("[")[0] not in _OF_A_CHAT:
            return error
        named = " and ".join(each.where for each in self.given)
        return type(error)(
            f"{named}, as a conversation: {error.message}",
            param=self.given[-1].where,
            code=error.code,
        )


def text_part(text: str) -> PoolPart:
    return PoolPart(type="text", text=text)


def scored_of(given: str | Document, where: str) -> Scored:
    """One input. Raises InvalidRequest for one that is empty, or has too many parts."""
    if isinstance(given, str):
        return _filled(where, {where: text_part(given)}, plain=True)
    _check_content(given, where)
    parts = {}
    if given.image is not None:
        url = _url(given.image)
        parts[f"{where}.image"] = PoolPart(type="image_url", image_url=url)
    if given.text:
        parts[f"{where}.text"] = text_part(given.text)
    parts |= _by_place(where, given.content or [])
    return _filled(where, parts, plain=given.image is None and given.content is None)


def scored_inputs(name: str, given: str | Document | Sequence[str | Document]) -> list[Scored]:
    """One input or many; of an object with content each part is one, as vLLM's scores have it.
    Raises InvalidRequest for none, too many, and an empty one."""
    if isinstance(given, Document) and given.content is not None:
        _check_content(given, name)
        check_count(name, len(given.content))
        found = [
            _filled(place, {place: part}) for place, part in _by_place(name, given.content).items()
        ]
    elif isinstance(given, (str, Document)):
        found = [scored_of(given, name)]
    else:
        check_count(name, len(given))
        _check_parts(name, given)
        found = [scored_of(each, f"{name}[{place}]") for place, each in enumerate(given)]
    return found


def _check_content(given: Document, where: str) -> None:
    """Raises InvalidRequest for content with another field, and of too many parts: each is read
    again for each pair."""
    if given.content is None:
        return
    if (given.text, given.image) != (None, None):
        raise InvalidRequest(
            f"{where} has content beside text or image; its parts are all there is", param=where
        )
    if given.content:
        check_count(f"{where}.content", len(given.content))


def _check_parts(name: str, given: Sequence[str | Document]) -> None:
    parts = sum(len(each.content or ()) for each in given if isinstance(each, Document))
    if parts > MAX_PARTS:
        raise InvalidRequest(
            f"{name} have content of {parts} parts together; at most {MAX_PARTS} are allowed",
            param=name,
        )


def _url(image: str) -> str:
    """Jina's API takes base64 by itself, too, which has no colon."""
    return image if ":" in image[:SCHEME] else f"data:;base64,{image}"


def _by_place(where: str, content: list[PoolPart]) -> dict[str, PoolPart]:
    return {f"{where}.content[{place}]": part for place, part in enumerate(content)}


def _said(part: PoolPart) -> str | None:
    """What a text says; None for media, which may have a text that says nothing."""
    return part.text if part.type in TEXTS else None


def _filled(where: str, parts: dict[str, PoolPart], *, plain: bool = False) -> Scored:
    """Raises InvalidRequest for an input without anything in it."""
    if all(_said(part) == "" for part in parts.values()):
        raise InvalidRequest(
            f"{where} is empty; a text, an image, or content with parts is needed", param=where
        )
    return Scored(where, parts, plain)


def conversation(
    query: Scored, document: Scored, template: PairTemplate, instruction: str | None
) -> ScoredChat:
    """A pair, for a model that reads both at once in its own format of a chat."""
    parts = [
        text_part(template.opening(instruction)),
        *query.parts.values(),
        text_part(template.document),
        *document.parts.values(),
    ]
    texts = [text for part in parts if (text := _said(part)) is not None]
    # Nothing stands between them; in a chat, texts without a picture are lines.
    content = "".join(texts) if len(texts) == len(parts) else parts
    messages = [
        PoolMessage(role="system", content=template.system),
        PoolMessage(role="user", content=content),
    ]
    return ScoredChat(messages, (query, document), ("", *query.parts, "", *document.parts))


def message_of(given: Scored, instruction: str | None) -> ScoredChat:
    """An input by itself, in a format of a chat."""
    system = [] if instruction is None else [PoolMessage(role="system", content=instruction)]
    user = PoolMessage(role="user", content=list(given.parts.values()))
    return ScoredChat([*system, user], (given,), tuple(given.parts))
