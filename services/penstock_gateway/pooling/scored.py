"""What `/score` and `/rerank` compare: texts, pictures, or both, in the forms of vLLM's and Jina's
APIs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource
from penstock.media.words import WORDS
from penstock.model.pooling_config import PairTemplate
from penstock_gateway.pooling.fields import check_count
from penstock_gateway.pooling.messages import PoolMessage, PoolPart, one_of, read_parts


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text, a picture (a URL or a data: URI), both, or parts as chats have them."""

    text: str | None = None
    image: str | None = None
    content: list[PoolPart] | None = None


class ScoredParts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each part is an input by itself, as vLLM's scores have it."""

    content: list[PoolPart]


@dataclass(frozen=True, slots=True)
class Scored:
    """One input. where: what the body calls it.  plain: whether it is a bare text."""

    where: str
    parts: list[PoolPart]
    plain: bool = False

    def text(self) -> str:
        """For a model that scores texts. Raises InvalidRequest for an input with anything else."""
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
        """For a model whose input is a text or a picture. Raises InvalidRequest for both."""
        return one_of(*self._read(), self.where)

    def check(self) -> None:
        """Raises InvalidRequest for a part that is neither a text nor an item of media."""
        self._read()

    def label(self) -> str:
        """Its texts; empty where it has none."""
        return "\n".join(part.text for part in self.parts if part.text)

    def _read(self) -> tuple[list[str], list[MediaSource]]:
        texts: list[str] = []
        pictures: list[MediaSource] = []
        read_parts(self.parts, self.where, texts, pictures)
        return texts, pictures


def text_part(text: str) -> PoolPart:
    return PoolPart(type="text", text=text)


def scored_of(given: str | Document, where: str) -> Scored:
    """One input. Raises InvalidRequest for one that is empty."""
    if isinstance(given, str):
        given = Document(text=given)
    parts = []
    if given.content is not None and (given.text, given.image) != (None, None):
        raise InvalidRequest(
            f"{where} has content beside text or image; its parts are all there is", param=where
        )
    if given.image is not None:
        parts.append(PoolPart(type="image_url", image_url=given.image))
    if given.text:
        parts.append(text_part(given.text))
    parts += given.content or []
    if not parts:
        raise InvalidRequest(
            f"{where} is empty; a text, an image, or content with parts is needed", param=where
        )
    return Scored(where, parts, plain=given.image is None and given.content is None)


def scored_inputs(name: str, given: str | Sequence[str | Document] | ScoredParts) -> list[Scored]:
    """One input or many. Raises InvalidRequest for none, too many, and an empty one."""
    if isinstance(given, ScoredParts):
        found = [
            Scored(f"{name}.content[{place}]", [part]) for place, part in enumerate(given.content)
        ]
    elif isinstance(given, str):
        found = [scored_of(given, f"{name}[0]")]
    else:
        found = [scored_of(each, f"{name}[{place}]") for place, each in enumerate(given)]
    check_count(name, len(found))
    return found


def conversation(
    query: Scored, document: Scored, template: PairTemplate, instruction: str | None
) -> list[PoolMessage]:
    """A pair, for a model that reads both at once in its own format of a chat."""
    parts = [
        text_part(template.opening(instruction)),
        *query.parts,
        text_part(template.document),
        *document.parts,
    ]
    texts = [part.text for part in parts if part.text is not None]
    # Nothing stands between them; in a chat, texts without a picture are lines.
    content = "".join(texts) if len(texts) == len(parts) else parts
    return [
        PoolMessage(role="system", content=template.system),
        PoolMessage(role="user", content=content),
    ]


def message_of(given: Scored, instruction: str | None) -> list[PoolMessage]:
    """An input by itself, in a format of a chat."""
    system = [] if instruction is None else [PoolMessage(role="system", content=instruction)]
    return [*system, PoolMessage(role="user", content=given.parts)]
