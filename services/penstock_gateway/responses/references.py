"""Items that a request names instead of sending them: those of stored responses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.responses.input_items import InputItem
from penstock_gateway.responses.reply import ID_PREFIX
from penstock_gateway.responses.request import STATELESS, ResponsesRequest
from penstock_gateway.service import Service

if TYPE_CHECKING:
    from penstock_gateway.storage.held_responses import HeldResponses
    from penstock_gateway.storage.response_records import ResponseRecords

REFERENCE = "item_reference"
MOST = 100
"""Responses that the references of a request may be to."""

THOUGHTS = "rs_"
"""How the ids of reasoning items begin, here and at OpenAI."""

_ID = re.compile(r"[a-z]+_(?P<base>.{1,300})_\d{1,9}")
"""An item's id holds that of its response."""


class _Output(msgspec.Struct):
    output: list[InputItem]


_OUTPUT = msgspec.json.Decoder(_Output)


async def with_items(service: Service, request: ResponsesRequest, owner: str) -> ResponsesRequest:
    """The request with the items that it refers to in their places. Thoughts that aren't there are
    left out, as those that another server keeps to itself are. Raises InvalidRequest, and HTTPError
    404 for another item that isn't there."""
    if isinstance(request.input, str) or not any(map(_refers, request.input or ())):
        return request
    kept = _KeptItems(
        service.kept_responses, owner, service.config.max_body_bytes, service.why_lost
    )
    items = []
    for place, item in enumerate(request.input or ()):
        found = await kept.find(item.id or "", f"input[{place}]") if _refers(item) else item
        if found is not None:
            items.append(found)
    return msgspec.structs.replace(request, input=items)


class _KeptItems:
    """records: None where the server keeps none.  most: bytes that the responses may have which
    hold them.  why_lost: what is said of an item that isn't there."""

    def __init__(
        self,
        records: ResponseRecords | HeldResponses | None,
        owner: str,
        most: int,
        why_lost: str,
    ) -> None:
        self._why_lost = why_lost
        self._records = records
        self._owner = owner
        self._most = self._left = most
        self._found: dict[str, dict[str | None, InputItem]] = {}

    async def find(self, id: str, where: str) -> InputItem | None:
        """None: thoughts that aren't there. where: it stands in the request."""
        named = _ID.fullmatch(id)
        if named is not None and self._records is not None:
            items = await self._items_of(self._records, ID_PREFIX + named["base"], f"{where}.id")
            if id in items:
                return items[id]
        if id.startswith(THOUGHTS):
            return None
        if self._records is None:
            raise InvalidRequest(
                f"{where} is an {REFERENCE}, but {STATELESS}; send the item itself, as clients do "
                "that are told store: false",
                param="input",
                code="unsupported_value",
            )
        raise HTTPError(
            404,
            f"{where}.id is {clip(id)}, and no stored response contains that item{self._why_lost}",
            param=f"{where}.id",
            code="item_not_found",
        )

    async def _items_of(
        self, records: ResponseRecords | HeldResponses, response: str, where: str
    ) -> dict[str | None, InputItem]:
        if response not in self._found:
            whole = await records.find(self._owner, response) or '{"output": []}'
            self._left -= len(whole)
            if len(self._found) == MOST or self._left < 0:
                raise InvalidRequest(
                    f"{where} is one too many: a request may refer to {MOST} responses "
                    f"of {self._most} bytes together",
                    param=where,
                )
            self._found[response] = {each.id: each for each in _OUTPUT.decode(whole).output}
        return self._found[response]


def _refers(item: InputItem) -> bool:
    """Whether an item only refers to another by its id; its type need not be said."""
    bare = item.type is None and item.role is None and item.id is not None
    return item.type == REFERENCE or bare
