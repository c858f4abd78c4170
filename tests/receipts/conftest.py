"""The fixtures of the gateway's tests."""

from tests.gateway.conftest import engine, http, machine, prepared_here, preparers_end  # noqa: F401
