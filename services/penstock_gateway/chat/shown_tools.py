"""Tools of which a chat template says nothing to the model."""

from __future__ import annotations

import asyncio
from functools import lru_cache

from penstock.process import logs
from penstock_gateway.chat.prompt import template_of
from penstock_gateway.http.notes import note
from penstock_gateway.models.backend import EngineInfo

log = logs.get(__name__)

UNSHOWN = "this model's chat template does not show tools, so it doesn't know of them"
TOLD = 256
"""Most templates that are remembered as logged."""


async def shows_tools(engine: EngineInfo) -> bool:
    """Whether the model learns of a request's tools. Raises InvalidRequest where it has no chat
    template."""
    template = template_of(engine)
    if template.shows_tools_at_once:
        return template.shows_tools()
    return await asyncio.to_thread(template.shows_tools)


async def note_unshown(engine: EngineInfo) -> None:
    """Says so in the reply's header, and in the log once for a template."""
    if not await shows_tools(engine):
        note(UNSHOWN)
        _say(template_of(engine).source)


@lru_cache(maxsize=TOLD)
def _say(template: str) -> None:
    log.warning(
        f"a request brings tools, and {UNSHOWN}; use a model whose template does, or give one "
        "with --chat-template"
    )
