"""Items that stand for a conversation before them: what is in one, and how the model reads it."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock_gateway.responses.input_items import InputItem

COMPACTION = "compaction"
MADE_HERE = "penstock-summary:"
"""Stands before the text of a summary that this server's models wrote."""
QUESTION = (
    "Summarise this conversation for somebody who will continue it and sees nothing else of it: "
    "the task and its state, the facts, names, numbers, paths and decisions that are still needed, "
    "and what remains to be done. Write only the summary."
)


def summary_of(item: InputItem, where: str) -> str:
    """Raises InvalidRequest for one of another server's."""
    content = item.encrypted_content or ""
    if not content.startswith(MADE_HERE):
        raise InvalidRequest(
            f"{where}.encrypted_content isn't one of this server's: what others encrypted can't be "
            "read here; send the conversation itself, or compact it at /v1/responses/compact",
            param=f"{where}.encrypted_content",
            code="invalid_value",
        )
    return content.removeprefix(MADE_HERE)
