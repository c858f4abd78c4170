"""The parts of an answer as Ollama shows them: pieces of text and reasoning, and whole calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.text.call_arguments import call_arguments
from penstock_gateway.generate.logprobs import ChatLogprob


class ReplyFunction(msgspec.Struct, frozen=True):
    """arguments: an object; where the model wrote none, what it wrote is under INVALID_JSON."""

    name: str
    arguments: dict[str, Any]


class ReplyCall(msgspec.Struct, frozen=True):
    id: str
    function: ReplyFunction


@dataclass
class AnswerPiece:
    """What one line shows, or a whole answer."""

    content: str = ""
    thinking: str = ""
    calls: list[ReplyCall] = field(default_factory=list)

    def take(self, other: AnswerPiece) -> None:
        """Adds another piece."""
        self.content += other.content
        self.thinking += other.thinking
        self.calls += other.calls


Send = Callable[[AnswerPiece], None]


class SentText:
    """Goes out as it comes."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def begin(self) -> None:
        """Nothing tells of it."""

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        if text:
            self._send(AnswerPiece(content=text))

    def finish(self, status: str) -> None:
        """Nothing tells of it."""


class SentThoughts(SentText):
    """Goes out as it comes, too."""

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._send(AnswerPiece(thinking=text))


class SentCall(SentText):
    """Goes out when it is whole."""

    def __init__(self, send: Send, call_id: str, name: str) -> None:
        super().__init__(send)
        self._call_id = call_id
        self._name = name
        self._texts: list[str] = []

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._texts.append(text)

    def finish(self, status: str) -> None:
        arguments = call_arguments("".join(self._texts))
        self._send(
            AnswerPiece(calls=[ReplyCall(self._call_id, ReplyFunction(self._name, arguments))])
        )


class PieceKinds:
    """Parts of the kinds that an answer has."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def text(self, index: int) -> SentText:
        return SentText(self._send)

    def thoughts(self, index: int) -> SentThoughts:
        return SentThoughts(self._send)

    def call(self, index: int, call_id: str, name: str) -> SentCall:
        return SentCall(self._send, call_id, name)
