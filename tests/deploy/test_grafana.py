"""The dashboard and what provisions it: whole, and readable by a person."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from typing import Any, ClassVar

import pytest
import yaml

from deploy.compose import targets
from deploy.local import FOLDER
from deploy.queries import DASHBOARD, panels

PROVISIONING = FOLDER / "grafana" / "provisioning"
WIDTH = 24


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def boxes() -> list[tuple[int, int, int, int]]:
    return [tuple(each["gridPos"][key] for key in "xywh") for each in dashboard()["panels"]]  # type: ignore[misc]


def test_every_panel_says_what_it_shows() -> None:
    assert len(list(panels())) > 40
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["expr"].strip()
            assert target["legendFormat"].strip(), panel["title"]


def test_ids_are_unique() -> None:
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    titles = [panel["title"] for panel in everything]
    assert len(set(titles)) == len(titles)
    for panel in panels():
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_panels_do_not_overlap() -> None:
    for x, y, w, h in boxes():
        assert 0 <= x < x + w <= WIDTH
        assert y >= 0
        assert h >= 1
    for (ax, ay, aw, ah), (bx, by, bw, bh) in combinations(boxes(), 2):
        apart = ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay
        assert apart, f"{(ax, ay, aw, ah)} lies over {(bx, by, bw, bh)}"


def test_a_data_source_is_chosen_and_not_fixed() -> None:
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    assert set(variables) == {"datasource", "model", "engine"}
    assert variables["datasource"]["query"] == "prometheus"
    for each in [*panels(), *(target for panel in panels() for target in panel["targets"])]:
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_rows_answer_the_questions_in_order() -> None:
    titles = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    rows = [title.split(":")[0] for title in titles]
    assert rows == ["Health", "Latency", "Engine", "Tenants", "Processes", "haproxy"]


def test_the_file_is_as_a_person_would_save_it() -> None:
    assert DASHBOARD.read_text() == json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


class _Grafana(BaseHTTPRequestHandler):
    """Answers as a Grafana does that starts: nothing, then the dashboard, then its source too."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        replies = {
            "/api/dashboards/uid/penstock": {"dashboard": {"panels": [{}]}},
            "/api/datasources/uid/prometheus/health": {
                "status": "OK" if len(self.asked) > 4 else "ERROR",
                "message": "no route",
            },
        }
        ready = len(self.asked) > 1 and self.path in replies
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(json.dumps(replies[self.path]).encode() if ready else b"")

    def log_message(self, *_: Any) -> None:
        pass


def test_the_check_waits_for_dashboard_and_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.time, "sleep", lambda _: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Grafana) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert targets.wait_grafana(url) == ""
        server.shutdown()
    assert [path.split("/")[2] for path in _Grafana.asked] == [
        *("dashboards", "dashboards", "datasources", "dashboards", "datasources"),
    ]
    assert dashboard()["uid"] == targets.DASHBOARD
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["uid"] == targets.SOURCE


def test_provisioning_finds_prometheus_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "penstock.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
