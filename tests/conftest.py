"""What all tests share: no network, a cache of their own, few threads, repeatable Hypothesis."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Set before any library reads them, and handed on to the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # 2 cores are shared by many processes
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
_CACHE = tempfile.mkdtemp(prefix="test-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE

settings.register_profile(
    "penstock", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("penstock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos",
        choices=("short", "full", "long"),
        default="short",
        help="how often tests/system/test_chaos.py kills and freezes processes",
    )
    parser.addoption(
        "--walks",
        choices=("short", "long"),
        default="short",
        help="operations of tests/engine/test_walk.py: 20,000, or a million",
    )
    parser.addoption(
        "--compose",
        action="store_true",
        help="tests/deploy/test_compose.py: everything by compose, on this machine's engine",
    )
    parser.addoption(
        "--queries",
        action="store_true",
        help="tests/deploy/test_queries.py asks a real Prometheus every query of deploy/",
    )
    parser.addoption(
        "--ray",
        action="store_true",
        help="tests/system/test_ray.py: workers on a local Ray cluster (extra `ray`)",
    )


@pytest.fixture(scope="session", autouse=True)
def _own_cache() -> Iterator[None]:
    """The folder for prepared models and downloads: made above, gone at the end."""
    yield
    shutil.rmtree(_CACHE, ignore_errors=True)
