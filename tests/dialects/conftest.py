"""The fixtures of the gateway's tests."""

from tests.gateway.conftest import (  # noqa: F401
    engine,
    http,
    machine,
    prepared_here,
    preparers_end,
)
from tests.gateway.fim.conftest import filling, knowing  # noqa: F401
