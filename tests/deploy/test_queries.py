"""Every query of the dashboard, the alerts and the recording rules finds data (`--queries`)."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from deploy.check_queries import ask_all, check, report
from deploy.local import prometheus
from deploy.other_dashboards import dashboard_queries
from deploy.queries import Query
from tests.deploy.programs import needed


@pytest.mark.timeout(500)
def test_every_query_finds_data(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--queries"):
        pytest.skip("takes two minutes: --queries")
    needed("haproxy")
    needed("prometheus")
    needed("redis-server")
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        answers = check(Path(folder))
    assert [each.where for each in answers if each.problem] == [], report(answers)


class Labels:
    """Says what a Prometheus would of its labels."""

    def label_values(self, label: str) -> list[str]:
        return {"model_name": ["org/one", "org/two"], "engine": ["0"]}[label]


def test_another_dashboard_is_asked_with_its_variables_filled(tmp_path: Path) -> None:
    plain = {"title": "Plain", "targets": [{"refId": "A", "expr": 'rate(a{m="$model"}[$__range])'}]}
    inside = {
        "title": "Inside",
        "targets": [
            {"refId": "A", "expr": 'a{e=~"${engine:regex}"}[$__rate_interval]'},
            {"refId": "B", "expr": "quantile($quantile, a)"},
            {"refId": "C"},
        ],
    }
    variables = [
        {"name": "DS", "query": "prometheus"},
        {"name": "model", "query": {"query": "label_values(model_name)"}},
        {"name": "engine", "includeAll": True, "query": 'label_values(vllm:x{a="b"}, engine)'},
        {"name": "quantile", "query": "median : 0.5, most : 0.9"},
    ]
    row = {"title": "Row", "type": "row", "panels": [inside]}
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"panels": [plain, row], "templating": {"list": variables}}))
    assert [query.expression for query in dashboard_queries(path, Labels())] == [
        'rate(a{m="org/one"}[1m])',
        'a{e=~".*"}[30s]',
        "quantile(0.5, a)",
    ]
    path.write_text(json.dumps({"panels": [plain]}))
    with pytest.raises(ValueError, match=r"what \$model is"):
        dashboard_queries(path, Labels())
    path.write_text("[]")
    with pytest.raises(ValueError, match="no dashboard of Grafana"):
        dashboard_queries(path, Labels())


def test_a_query_without_data_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed("prometheus")
    needed("redis-server")
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
