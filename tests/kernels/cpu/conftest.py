"""Every test of the CPU kernels runs on each instruction set that this machine has.

Nothing here needs torch: the same tests run under the sanitizers, where loading it costs more than
they do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import chain, groupby

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # Before the library starts its threads.

import pytest
from hypothesis import HealthCheck, settings

from penstock_kernels.cpu import library
from tests import thinning
from tests.instruction_sets import TESTED, instruction_set
from tests.kernels.cpu.sanitize import EVERY
from tests.kernels.cpu.sanitized_memory import sanitized, watch

settings.register_profile(
    "kernels",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def pytest_configure() -> None:
    """Before any module of tests is imported: some count their examples by it."""
    if EVERY in os.environ:
        thinning.every = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under the sanitizers some of each test's cases go through the same lines. What differs only
    in the instruction set is in a row: a slow model's answers are kept for the next ones."""
    items[:] = in_rows(items)
    if sanitized() and not thinning.every:
        left_out = set(thinning.thinned(items, lambda _: thinning.SANITIZED))
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def in_rows(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """All of them, and each test's where they were."""
    for _, group in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        rows: dict[object, list[pytest.Item]] = {}
        for item in group:
            places = getattr(item, "callspec", None)
            others = {} if places is None else {**places.indices, "isa": 0}
            rows.setdefault(tuple(sorted(others.items())), []).append(item)
        yield from chain.from_iterable(rows.values())


@pytest.fixture(scope="session", autouse=True)
def _watched_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if sanitized():
            watch(patch)
        yield


@pytest.fixture(scope="session")
def loaded() -> None:
    """Fails where the library ought to be; skips where it can't be built."""
    try:
        library.load()
    except ImportError as error:
        if shutil.which("g++") is None:
            pytest.skip(f"no g++ (Debian package g++): {error}")
        raise


@pytest.fixture(params=TESTED)
def isa(request: pytest.FixtureRequest, loaded: None) -> Iterator[str]:
    with instruction_set(request.param) as name:
        yield name
