"""What all tests share: no network, a cache of their own, few threads, examples by the commit."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from testing import preloaded
from tests import (
    left_behind,
    one_trust_store,
    out_of_time,
    processor_time,
    properties,
    rotation,
    thinning,
)
from tests.thinning import by_test, share_of, thinned

_PARALLEL = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this process is one of several that run tests (pytest -n)."""

# Set before any library reads them, and handed on to the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "2")
if _PARALLEL:
    os.environ["OMP_NUM_THREADS"] = "1"  # each core has a process of its own
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # 2 cores are shared by many processes
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # As gateways have it, see rpc.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
if not _PARALLEL:  # The processes of pytest -n inherit the first one's: a model is prepared once.
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="test-cache-")
_CACHE = os.environ["XDG_CACHE_HOME"]

WHOLE_MODEL = frozenset(
    {
        "default_bfloat16",
        "default_float32",
        "default_folder",
        "default_model",
        "smollm2_in_transformers",
        "transformers_model",
    }
)
"""Fixtures that bring the default model's weights: what asks for one is slow."""
SYSTEMS = Path(__file__).with_name("system")
TESTS = Path(__file__).parent
INTERPRETED = tuple(
    TESTS / name
    for name in ("kernels/triton", "worker/cuda", "worker/cuda_ops", "worker/cuda_sampler")
)
"""Tests of Triton kernels. Without a GPU they are interpreted, which takes seconds a test."""

FORKED = (
    SYSTEMS,
    TESTS / "deploy",
    TESTS / "loadtest/test_adversary.py",
)
"""Whose tests start systems: their processes are forked from one that has all modules."""
EXECUTED = (SYSTEMS / "test_process_memory.py",)
"""Except for these, whose processes are executed, as a user's are, and for tests that ask for the
fixture `executed`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    properties.add_options(parser)
    processor_time.add_option(parser)
    out_of_time.add_option(parser)
    parser.addoption(
        "--long",
        action="store_true",
        help="every case, where a run without it takes some of each (tests/thinning.py)",
    )
    parser.addoption(
        "--sample",
        type=int,
        metavar="N",
        help="of what takes turns (tests/rotation.py), what runs in the N-th; without it, all",
    )
    parser.addoption(
        "--landing",
        type=int,
        metavar="N",
        help="of what takes turns, what runs at the N-th landing",
    )
    parser.addoption(
        "--every-landing",
        action="store_true",
        help="nothing that takes turns (tests/rotation.py)",
    )
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
        help="tests/deploy/test_compose.py and test_one_container.py, on this machine's engine",
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


def pytest_configure(config: pytest.Config) -> None:
    """Before any module of tests is imported: some count their examples by it."""
    thinning.every = config.getoption("--long")
    config.pluginmanager.register(left_behind)
    config.pluginmanager.register(properties)
    processor_time.configure(config)
    out_of_time.configure(config)
    properties.load_profile(config)


def turns_of(config: pytest.Config) -> rotation.Turns | None:
    """The turns that run; None: they don't count."""
    sample, landing = config.getoption("--sample"), config.getoption("--landing")
    if config.getoption("--every-landing"):
        return ()
    if config.getoption("--long") or (sample is None and landing is None):
        return None
    if sample is None:
        return rotation.turns_of_landing(landing)
    return rotation.turn_of_commit(sample)


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [f"properties: --seed {properties.seed_of(config)} tries the same examples"]
    for name in ("--sample", "--landing"):
        number = config.getoption(name)
        if number is not None:
            lines.append(f"turns: {name} {number} runs the same (tests/rotation.py)")
    return lines


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose turn it isn't are not even imported."""
    turns = turns_of(config)
    if turns is None:
        return None
    name = collection_path.relative_to(TESTS.parent).as_posix()
    return True if name in rotation.left_out_files(turns) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Whoever is collected first and imports Triton, as parts of transformers do, gets the one
    that is interpreted (tests/interpreted_triton.py). Not longer: what tests start would inherit
    it."""
    with pytest.MonkeyPatch.context() as patch:
        if not preloaded.GPUS.exists():
            patch.setenv("TRITON_INTERPRET", "1")
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as slow what reads the default model or starts a system, leaves out what is long, and
    puts the files that take longest first: of several processes none gets such a one last."""
    _thin_out_interpreted(items)
    interpreted = set(map(id, _interpreted(items)))
    others = [item for item in items if id(item) not in interpreted]
    for item in thinned(others, share_of):
        item.add_marker("long")
    kept, long = [], []
    for item in items:
        whole = WHOLE_MODEL.intersection(getattr(item, "fixturenames", ()))
        if whole or SYSTEMS in _folders(item.path):
            item.add_marker("slow")
        left_out = item.get_closest_marker("long") and not config.getoption("--long")
        (long if left_out else kept).append(item)
    turns = turns_of(config)
    if turns is not None:
        others = set(rotation.others_turns(kept, turns))
        kept = [item for item in kept if item not in others] + _long_of_landing(config, long)
        chosen = set(kept)
        long = [item for item in items if item not in chosen]
    if long:
        config.hook.pytest_deselected(items=long)
    properties.sow(kept, config)
    if _PARALLEL:
        kept.sort(key=thinning.place)
    items[:] = kept


def _long_of_landing(config: pytest.Config, long: list[pytest.Item]) -> list[pytest.Item]:
    landing = config.getoption("--landing")
    return [] if landing is None else [*rotation.long_cases(long, landing)]


def _interpreted(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests of kernels that are interpreted here."""
    found = [item for item in items if not _folders(item.path).isdisjoint(INTERPRETED)]
    return [] if not found or _has_gpu() else found


def _thin_out_interpreted(items: list[pytest.Item]) -> None:
    """Keeps the first case of each test of interpreted kernels quick; a share of the others becomes
    slow, the rest long. All stay as they are where there is a GPU."""
    found = _interpreted(items)
    for cases in by_test(found):
        for case in cases[1:]:
            case.add_marker("slow")
    for item in thinned(found, thinning.interpreted_share):
        item.add_marker("long")


@functools.cache
def _folders(of: Path) -> frozenset[Path]:
    return frozenset(of.parents)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_sessionstart() -> None:
    """What is collected stays: a garbage collector that goes through torch, transformers and some
    thousand tests again and again takes a tenth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    one_trust_store.use()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """The folder for prepared models and downloads goes with the process that made it."""
    if not _PARALLEL:
        shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def preloaded_process() -> Iterator[preloaded.Preloaded]:
    source = preloaded.Preloaded()
    yield source
    source.close()


@pytest.fixture
def executed() -> Iterator[None]:
    """For what is about starting: processes are executed in any file."""
    with preloaded.executed():
        yield


@pytest.fixture(scope="module", autouse=True)
def quick_starts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Systems start in a quarter of the time where starting isn't what a file is about."""
    places = _folders(request.path) | {request.path}
    if places.isdisjoint(FORKED) or request.path in EXECUTED:
        yield
        return
    with preloaded.in_use(request.getfixturevalue("preloaded_process")):
        yield
