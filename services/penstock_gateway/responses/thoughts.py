"""The item that holds what the model thought, and what a client sends back of it.

The thoughts are the item's content. Clients of OpenAI's models expect two other fields, and many
show or send back nothing else: a summary, and an encrypted text in conversations that the server
doesn't store. Both hold all of the thoughts here; nothing is encrypted.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from penstock_gateway.responses.items import ReasoningItem, ReasoningText, SummaryText
from penstock_gateway.responses.output import OpenItem
from penstock_gateway.responses.request import ENCRYPTED, ResponsesRequest

_MARK = "penstock:"
"""How an encrypted_content of this server begins; those of others can't be read."""


@dataclass(frozen=True, slots=True)
class ThoughtsShown:
    """Which fields hold the thoughts, beside the content. sealed: encrypted_content does."""

    summary: bool = False
    sealed: bool = False

    @classmethod
    def asked_for(cls, request: ResponsesRequest) -> ThoughtsShown:
        options = request.reasoning
        summary = options is not None and (options.summary or options.generate_summary)
        return cls(bool(summary), ENCRYPTED in (request.include or ()))

    @classmethod
    def in_item(cls, item: ReasoningItem) -> ThoughtsShown:
        return cls(bool(item.summary), item.encrypted_content is not UNSET)


class OpenReasoning(OpenItem):
    """Thoughts, in one part, and in one part of the summary if they are shown there."""

    def __init__(self, *place: Any, shown: ThoughtsShown) -> None:
        super().__init__(*place)
        self._shown = shown

    def _item(self, status: str, text: str) -> ReasoningItem:
        if status == "in_progress":
            return ReasoningItem(self.id, status, [])
        summary = [SummaryText(text)] if self._shown.summary else []
        sealed = _sealed(text) if self._shown.sealed else UNSET
        return ReasoningItem(self.id, status, [ReasoningText(text)], summary, sealed)

    def _begun(self) -> None:
        self._tell_part("content_part.added", part=ReasoningText(""))
        self._tell_summary("part.added", part=SummaryText(""))

    def _added(self, text: str, logprobs: Any) -> None:
        self._tell_part("reasoning_text.delta", delta=text)
        self._tell_summary("text.delta", delta=text)

    def _finished(self, text: str) -> None:
        self._tell_part("reasoning_text.done", text=text)
        self._tell_part("content_part.done", part=ReasoningText(text))
        self._tell_summary("text.done", text=text)
        self._tell_summary("part.done", part=SummaryText(text))

    def _tell_summary(self, kind: str, **fields: Any) -> None:
        if self._shown.summary:
            self._tell(f"reasoning_summary_{kind}", summary_index=0, **fields)


def _sealed(text: str) -> str:
    return _MARK + base64.b64encode(text.encode()).decode()


def unsealed(sealed: str | None) -> str:
    """The thoughts in an encrypted_content; empty if it is another server's."""
    if sealed is None or not sealed.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
