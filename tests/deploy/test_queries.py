"""Every query of the dashboard, the alerts and the recording rules finds data (`--queries`)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from deploy.check_queries import ask_all, check, report
from deploy.local import prometheus
from deploy.queries import Query
from tests.deploy.programs import needed


@pytest.mark.timeout(500)
def test_every_query_finds_data(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--queries"):
        pytest.skip("takes two minutes: --queries")
    needed("haproxy")
    needed("prometheus")
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        answers = check(Path(folder))
    assert [each.where for each in answers if each.problem] == [], report(answers)


def test_a_query_without_data_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed("prometheus")
    monkeypatch.setattr("deploy.check_queries.PATIENCE", 3.0)
    queries = [
        Query("good", "prometheus_build_info or vector(1)"),
        Query("none", "penstock:no_such_thing"),
        Query("NaN", "vector(0) / vector(0)"),
        Query("wrong", "sum("),
    ]
    with prometheus({}, tmp_path) as source:
        problems = [each.problem for each in ask_all(source, queries)]
    assert problems[:3] == ["", "no data", "nothing but NaN"]
    assert problems[3].startswith("refused: ")
