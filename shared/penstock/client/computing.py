"""What computes an answer that is computed in parts: several prompts, beams, a recording's windows.

Each part is a request by itself, which any engine core could take. They are held to one fingerprint
before the first is placed: parts of two would be an answer that no engine core gives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import EngineUnavailable

if TYPE_CHECKING:
    from penstock.client import EngineClient
    from penstock.request.terms import Terms

SETTLING = 10.0
"""Seconds for which a request waits for engine cores to report what they compute with: a front end
that has just started has no reports yet."""

LOOK_EVERY = 0.25
"""Seconds between looks at engine cores that tell nothing."""

UNTOLD = "no engine core has told yet what it computes with; try again"


async def fingerprint_of_parts(
    client: EngineClient, prompt_token_ids: list[int], terms: Terms
) -> str | None:
    """Returns the fingerprint that all parts of an answer must be computed with: that of the engine
    core which its first prompt would go to now. None: there is one engine core, and it hasn't
    reported its fingerprint yet. Raises EngineUnavailable where there are several and none has."""

    def found() -> str | None:
        return client.fingerprint_for(prompt_token_ids, terms)

    fingerprint = await settled(client, found, lambda: client.count < 2)
    if fingerprint is None and client.count > 1:
        raise EngineUnavailable(UNTOLD)
    return fingerprint


async def settled(
    client: EngineClient, found: Callable[[], str | None], hopeless: Callable[[], bool]
) -> str | None:
    """What is found within SETTLING seconds, unless that is hopeless before."""
    give_up = time.monotonic() + SETTLING
    while (fingerprint := found()) is None and not hopeless() and time.monotonic() < give_up:
        with suppress(TimeoutError):
            await asyncio.wait_for(client.next_status(), LOOK_EVERY)
    return fingerprint
