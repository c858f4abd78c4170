"""What is left of work that failed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from penstock_gateway.http.errors import ClientGone
from penstock_gateway.http.events import while_connected


class Body:
    """Stands for what a request brought."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def leaves() -> dict[str, str]:
    return {"type": "http.disconnect"}


async def stays() -> dict[str, str]:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_request_that_fails_is_forgotten_at_once(uncollected: None, is_left: bool) -> None:
    """The garbage collector looks at everything every half a minute, and bodies are large."""

    async def work(body: Body) -> None:
        if is_left:
            await asyncio.Event().wait()
        raise ValueError(body)

    body = Body()
    kept = weakref.ref(body)
    try:
        await while_connected(work(body), leaves if is_left else stays)  # type: ignore[arg-type]
    except (ValueError, ClientGone):
        pass
    del body
    await asyncio.sleep(0)
    assert kept() is None
