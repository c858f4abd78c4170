"""The list of models as Anthropic's clients expect it: those that send anthropic-version."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_dialects.anthropic.errors import VERSION
from penstock_gateway.http.errors import clip
from penstock_gateway.http.operations import Parameters, asked
from penstock_gateway.system.model_views import Card, ModelView

if TYPE_CHECKING:
    from starlette.requests import Request

USUAL, MOST = 20, 1000
"""Models of one page."""
BETA: Parameters = {
    "beta": (
        "Accepted, without effect: Anthropic's SDKs send it for what is new there.",
        {"type": "boolean"},
    )
}
PAGES: Parameters = {
    "limit": (
        f"Maximum number of entries, for Anthropic's clients; if absent: {USUAL}.",
        {"type": "integer", "minimum": 1, "maximum": MOST},
    ),
    "after_id": ("Anthropic's: the models after this one.", {"type": "string"}),
    "before_id": ("Anthropic's: the models before this one.", {"type": "string"}),
}


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    """created_at: RFC 3339.  max_input_tokens, max_tokens: the model's context; null while it has
    never been loaded."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    lifecycle: str = "active"
    capabilities: None = None
    line: None = None
    deprecated_at: None = None
    retires_at: None = None


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """has_more: there are others in the direction of the request."""

    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool


class AnthropicModels(ModelView):
    """For requests with the header anthropic-version."""

    of_list = MappingProxyType({**PAGES, **BETA})
    of_one = BETA

    def asked(self, request: Request) -> bool:
        return any(name == VERSION for name, _ in request.scope["headers"])

    def refuse(self, request: Request) -> None:
        for name in PAGES:
            if asked(request, name) is not None:
                raise InvalidRequest(
                    f"{name} is a parameter of Anthropic's API; it needs the header"
                    " anthropic-version",
                    param=name,
                )

    def page(self, request: Request, cards: Sequence[Card]) -> ModelPage:
        found, has_more = page_of_ids(request, [card.id for card in cards])
        data = [self.one(cards[place]) for place in found]
        return ModelPage(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=has_more,
        )

    def one(self, card: Card) -> ModelInfo:
        return ModelInfo(
            id=card.id,
            display_name=card.id,
            created_at=moment(card.created),
            max_input_tokens=card.max_model_len,
            max_tokens=card.max_model_len,
        )


def page_of_ids(request: Request, ids: list[str]) -> tuple[range, bool]:
    """Places of those that are asked for, and whether there are more. Raises InvalidRequest."""
    after, before = _place(request, "after_id", ids), _place(request, "before_id", ids)
    limit = asked(request, "limit") or USUAL
    start, end = (0 if after is None else after + 1), (len(ids) if before is None else before)
    if before is not None and after is None:
        first = max(start, end - limit)
        return range(first, end), first > start
    last = min(end, start + limit)
    return range(start, last), last < end


def _place(request: Request, name: str, ids: list[str]) -> int | None:
    given: Any = asked(request, name)
    if given is None:
        return None
    if given not in ids:
        raise InvalidRequest(f"{name} is {clip(given)}, which is not in the list", param=name)
    return ids.index(given)


def moment(seconds: int) -> str:
    """Unix time as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


VIEW = AnthropicModels()
