"""Properties: other examples at each commit, and each must have met its case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import met_table
from tests.met_table import Row

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]

CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests import met, properties

def pytest_addoption(parser):
    properties.add_options(parser)

def pytest_configure(config):
    config.pluginmanager.register(properties)
    properties.load_profile(config)

def pytest_collection_modifyitems(config, items):
    properties.sow(items, config)
"""
PROPERTIES = """
from hypothesis import given, strategies as st
from tests.met import met

DRAWN = []

@given(st.integers(0, 10**9))
def test_drawn(number):
    met("any", True)
    DRAWN.append(number)

def test_shown():
    print("drawn", DRAWN)

@given(st.integers(0, 10**9))
def test_in_vain(number):
    met("negative", number < 0)

TIMES = []

@given(st.integers(0, 10**9))
def test_by_chance(number):
    TIMES.append(number)
    met("only later", len(TIMES) > 40)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.format(root=str(ROOT)))
    pytester.makepyfile(PROPERTIES)
    return pytester


def drawn(suite: pytest.Pytester, *options: str) -> str:
    done = suite.runpytest_subprocess("-s", "-k", "drawn or shown", *options)
    done.assert_outcomes(passed=2)
    _, _, numbers = "\n".join(done.outlines).partition("drawn [")
    return numbers.partition("]")[0]


def test_each_commit_has_other_examples(suite: pytest.Pytester) -> None:
    first, again, other = (drawn(suite, "--seed", number) for number in ("1", "1", "2"))
    assert first == again != other
    assert drawn(suite, "--seed", "1", "--hypothesis-seed=9") != first, "whoever asks for it"


def test_a_property_that_never_met_its_case_fails(suite: pytest.Pytester) -> None:
    done = suite.runpytest_subprocess("--met", "--no-shrinking")
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(["*none of 165 examples met the case: negative"])
    done.stdout.fnmatch_lines(["*of    66*test_by_chance: only later"])
    done.stdout.fnmatch_lines(["*33 of*33*test_drawn: any"])


def test_the_table_is_of_properties_that_there_are_and_each_met_its_case() -> None:
    rows = met_table.recorded()
    assert len({row.test for row in rows}) >= 110
    for test, case, met, examples in rows:
        file, _, name = test.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {name.rpartition('::')[2]}(" in source, test
        assert 0 < met <= examples, (test, case)


def test_what_is_counted_anew_takes_the_place_of_what_was(tmp_path: Path) -> None:
    file, here = tmp_path / "met.tsv", "tests/test_properties.py"
    gone = Row("tests/test_gone.py::test_it", "any", 1, 1)
    met_table.record(
        [Row(f"{here}::test_a", "first", 1, 9), Row(f"{here}::test_b", "any", 2, 2), gone], file
    )
    met_table.record([Row(f"{here}::test_a[{at}]", "other", at, 5) for at in (1, 2)], file)
    assert met_table.recorded(file) == [
        Row(f"{here}::test_a", "other", 3, 10),
        Row(f"{here}::test_b", "any", 2, 2),
    ]
