"""Prometheus' configuration and rules, as its own checker reads them, and what they speak of."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.local import FOLDER, PROMETHEUS_CONFIG, haproxy, rendered
from deploy.queries import everything, rules, watched
from tests.deploy import families
from tests.deploy.programs import needed

RULES = sorted((FOLDER / "prometheus" / "rules").glob("*.yml"))
ALERT_TESTS = FOLDER / "prometheus" / "tests" / "alerts_test.yml"
RUNBOOK = (FOLDER / "runbook.md").read_text()


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        [needed("promtool"), *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    promtool("check", "config", "--syntax-only", str(PROMETHEUS_CONFIG))
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump(rendered({"gateway": ["127.0.0.1:1"]}, token="secret")))
    assert "2 rule files found" in promtool("check", "config", str(config))


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", *map(str, RULES))


@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(ALERT_TESTS))


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def test_no_alert_is_without_a_test() -> None:
    fired = set()
    for each in yaml.safe_load(ALERT_TESTS.read_text())["tests"]:
        fired |= {check["alertname"] for check in each["alert_rule_test"] if check["exp_alerts"]}
    assert fired == set(alerts())


def test_every_alert_says_what_to_do() -> None:
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}
        assert notes["runbook_url"] == f"deploy/runbook.md#{name.lower()}"
        section = RUNBOOK.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert re.findall(r"^\*\*(.+?)\.\*\* \S", section, re.MULTILINE) in (
            ["Means", "Look", "Do"],
            ["Means", "Look, do"],
        ), name


def test_the_table_of_alerts_has_all_of_them() -> None:
    table = (FOLDER / "README.md").read_text()
    missing = [name for name in alerts() if f"| {name} |" not in table]
    assert not missing


def test_the_runbook_has_no_section_too_many() -> None:
    assert set(re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)) == set(alerts())
    anchors = set(re.findall(r"\(#(\w+)\)", RUNBOOK))
    assert anchors <= {name.lower() for name in alerts()}


def test_the_jobs_are_the_processes() -> None:
    jobs = yaml.safe_load(PROMETHEUS_CONFIG.read_text())["scrape_configs"]
    ports = {job["job_name"]: job["dns_sd_configs"][0]["port"] for job in jobs}
    assert ports == {"gateway": 9102, "engine": 9100, "worker": 9101, "haproxy": 8404}


def test_queries_read_only_what_there_is() -> None:
    known = families.ALL | {rule["record"] for rule in rules() if "record" in rule}
    queries = everything()
    assert [query.where for query in queries if not query.metrics] == []
    assert {query.where: query.metrics - known for query in queries if query.metrics - known} == {}


def test_every_family_is_read_by_some_query() -> None:
    """What nobody looks at tells nobody anything."""
    assert families.ALL - {name for query in everything() for name in query.metrics} == set()


def test_all_names_of_haproxy_are_its_own(tmp_path: Path) -> None:
    needed("haproxy")
    with haproxy(["127.0.0.1:1"], tmp_path) as balancer:
        text = httpx.get(f"http://{balancer.operations}/metrics").text
    assert set(re.findall(r"^(\w+)\{", text, re.MULTILINE)) >= families.HAPROXY


@pytest.mark.parametrize(
    ("alert", "vectors"),
    [
        ("a > 0.95", ["a"]),
        ("a > 14.4 * 0.01\n and b > 14.4 * 0.01", ["a", "b"]),
        ("a == 0 unless on (job, x) b == 1", ["a", "b"]),
        ('absent(up{job="a"}) or absent(up{job="b"})', ['up{job="a"}', 'up{job="b"}']),
        ("increase(a[15m]) > 2", ["increase(a[15m])"]),
    ],
)
def test_what_an_alert_watches(alert: str, vectors: list[str]) -> None:
    assert watched(alert) == vectors
