"""Bodies that are meant to hurt: refused, and nobody else notices."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.hostile_bodies import BODIES, attack, stream
from testing.processes import processor_seconds
from testing.serving import Server

pytestmark = [pytest.mark.timeout(600)]

PATIENCE = 200.0
"""Seconds that a refusal may take here, on a machine that may have other work;
loadtest/hostile_bodies.py measures what it takes."""
MOST_SECONDS = 5.0
"""Of the gateway's processor time, which other work doesn't add to."""


async def test_they_are_refused_and_others_go_on(server: Server) -> None:
    _, alone = await stream(server.url, 1, 300)
    other = asyncio.create_task(stream(server.url, 1, 300))
    gateway = server.child("gateway 0")
    for name, make in BODIES.items():
        body = make()
        before = processor_seconds(gateway)
        async with asyncio.timeout(PATIENCE):
            status, _ = await attack(server.url, body)
        assert 400 <= status < 500, f"{name}: {status}"
        spent = processor_seconds(gateway) - before
        assert spent < MOST_SECONDS, f"{name}: {spent:.1f} s"
    _, disturbed = await other
    assert disturbed == alone
    assert server.get("/health/ready")[0] == 200
