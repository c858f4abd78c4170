"""How many items of media may wait to be prepared."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import Limited, Overloaded
from penstock.media import pool as module
from penstock.media.pool import MediaPool
from penstock.media.wire import ProcessBounds


async def test_few_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    monkeypatch.setattr(module, "MAX_OF_TENANT", 2)
    pool = MediaPool(ProcessBounds(1 << 30, 1.0), 1)
    tasks = [asyncio.create_task(pool._enter("a")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Limited, match="2 media items of this tenant"):
        await pool._enter("a")
    tasks.append(asyncio.create_task(pool._enter("b")))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await pool._enter("c")
    assert not isinstance(caught.value, Limited)
    for tenant in ("a", "a", "b"):
        pool._turns.leave(tenant)
    await asyncio.gather(*tasks)
