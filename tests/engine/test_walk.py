"""Random histories: Hypothesis finds small ones, a seeded walk goes far."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.walked_harness import Drawn, make_harness
from tests.engine.walker import Walker
from tests.engine.walks import seeded_walk
from tests.met import met as is_met
from tests.thinning import part

LENGTH = part(1000, 1 / 2)
"""Operations of a long history."""


@settings(max_examples=part(60, 1 / 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 60))
def test_short_histories(data: st.DataObject, length: int) -> None:
    choose = Drawn(data)
    walker = Walker(make_harness(choose), choose)
    walker.connect()
    for _ in range(length):
        walker.walk()
    walker.end()
    is_met("ten steps", walker.h.core.state.scheduling.num_steps >= 10)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """--walks long: a million operations."""
    if "seed" in metafunc.fixturenames:
        long = metafunc.config.getoption("--walks") == "long"
        metafunc.parametrize("seed", range(1000 if long else 20))


def test_long_histories(seed: int) -> None:
    assert walked(seed).operations == LENGTH


def test_long_histories_meet_what_they_are_for() -> None:
    """Else the test above would prove little."""
    met = sum((walked(seed).met for seed in range(20)), Counter[str]())
    for what, least in {
        "preempted": 51,
        "reused": 501,
        "deaths": 51,
        "ended": 501,
        "deferred": 100,
        "compiled for many": 20,
        "killed under a grammar": 5,
        "killed while compiling": 5,
        "resumed in a prompt": 1,
        "killed in a prompt": 1,
        "grammar: stop": 50,
        "grammar: invalid_grammar": 20,
        "grammar: complex_grammar": 1,
    }.items():
        assert met[what] >= part(least, 1 / 3), (what, met)


class Walk(NamedTuple):
    """What is left of a long one: its operations, and how often it met what."""

    operations: int
    met: Counter[str]


@functools.cache
def walked(seed: int) -> Walk:
    """Two tests look at the same walks, each of which takes a second."""
    walker = seeded_walk(seed, LENGTH)
    met = Counter(walker.met)
    met["preempted"] += walker.h.core.state.scheduling.num_preemptions
    met["reused"] += walker.h.num_reused
    for front in walker.h.fronts + walker.h.gone:
        for request in front.requests.values():
            if request.submit.grammar is not None:
                terminals = [s.terminal for s in request.sequences.values() if s.terminal]
                met.update(f"grammar: {t.error_code or t.finish}" for t in terminals)
            met["deaths"] += sum(score.deaths for score in request.sequences.values())
            met["ended"] += sum(
                score.terminal is not None
                and score.terminal.finish in ("stop", "length", "repetition")
                for score in request.sequences.values()
            )
    walker.end()
    return Walk(walker.operations, met)


def test_decisions_do_not_depend_on_hash_order() -> None:
    program = "from tests.engine.test_walk import print_digest; print_digest()"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def print_digest() -> None:
    walk = seeded_walk(3, 300)
    print(hashlib.sha256(b"".join(walk.h.trace)).hexdigest())
