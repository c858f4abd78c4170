"""Gateways on a socket, with both HTTP parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway


@pytest.fixture(params=["auto", "h11"], ids=["httptools", "h11"])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., LiveGateway]]:
    """Starts gateways; each test runs with both HTTP parsers."""
    with ExitStack() as stack:

        def start(engine: FakeEngineClient, **keywords: Any) -> LiveGateway:
            return stack.enter_context(LiveGateway(engine, parser=request.param, **keywords))

        yield start
