"""Gateways on a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway


@pytest.fixture
def start() -> Iterator[Callable[..., LiveGateway]]:
    """Starts gateways, which end with the test."""
    with ExitStack() as stack:

        def start(engine: FakeEngineClient, **keywords: Any) -> LiveGateway:
            return stack.enter_context(LiveGateway(engine, **keywords))

        yield start
