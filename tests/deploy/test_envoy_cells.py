"""Envoy's file for cells: Envoy accepts it, and it says what haproxy's says."""

from __future__ import annotations

import os
import re
import socketserver
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.local import CELLS_CONFIG, free_port, status
from deploy.local_envoy import ENVOY_CELLS_CONFIG, endpoints, envoy_cells
from testing.serving import wait_until
from tests.deploy.compose_tree import TREES
from tests.deploy.programs import needed
from tests.deploy.scripted_gateway import Scripted, all_reached, scripted_gateway

PATH = "/v1/completions"
DRAIN = ENVOY_CELLS_CONFIG.parent / "drain.sh"
HAPROXY = CELLS_CONFIG.read_text()
ENVOY: dict[str, Any] = yaml.safe_load(ENVOY_CELLS_CONFIG.read_text())
LISTENERS = {each["name"]: each for each in ENVOY["static_resources"]["listeners"]}
CELLS = {each["name"]: each for each in ENVOY["static_resources"]["clusters"]}["cells"]


def manager(name: str) -> dict[str, Any]:
    """What a listener does with HTTP."""
    [chain] = LISTENERS[name]["filter_chains"]
    [only] = chain["filters"]
    return dict(only["typed_config"])


def route() -> dict[str, Any]:
    [host] = manager("clients")["route_config"]["virtual_hosts"]
    [found] = [each["route"] for each in host["routes"] if "route" in each]
    return dict(found)


def test_envoy_accepts_it_without_a_warning() -> None:
    said = subprocess.run(
        [needed("envoy"), "--mode", "validate", "--config-path", str(ENVOY_CELLS_CONFIG)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 0, said.stderr
    assert "[warning]" not in said.stderr, said.stderr


def test_it_hashes_what_haproxy_hashes_in_the_same_order() -> None:
    """haproxy's last rule that fits counts, Envoy's first."""
    headers = re.findall(r"set-var\(txn\.belongs\) req\.hdr\(([a-z-]+)\)", HAPROXY)
    assert len(headers) == 3
    assert "set-var(txn.belongs) src\n" in HAPROXY
    *by_header, last = route()["hash_policy"]
    assert [each["header"]["header_name"] for each in by_header] == headers[::-1]
    assert all(each["terminal"] for each in by_header)
    assert last == {"connection_properties": {"source_ip": True}}


def test_it_listens_where_haproxy_does() -> None:
    ports = {
        name: each["address"]["socket_address"]["port_value"] for name, each in LISTENERS.items()
    }
    found = re.findall(r"(?m)^frontend (\w+)\n    bind \"\$\{\w+-:(\d+)\}", HAPROXY)
    assert ports == {name: int(port) for name, port in found}
    assert ENVOY["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


def test_a_cell_may_have_as_much_as_behind_haproxy() -> None:
    [load] = re.findall(r"PENSTOCK_CELL_LOAD-(\d+)", HAPROXY)
    hashing = CELLS["common_lb_config"]["consistent_hashing_lb_config"]
    assert hashing["hash_balance_factor"] == int(load)


def test_health_and_retries_are_haproxys() -> None:
    [health] = CELLS["health_checks"]
    [path] = re.findall(r"http-check send meth GET uri (\S+)", HAPROXY)
    assert health["http_health_check"]["path"] == path
    inter, fall, rise = re.findall(r"inter (\d+s) .* fall (\d) rise (\d)", HAPROXY)[0]
    assert health["interval"] == health["no_traffic_interval"] == inter
    assert (health["unhealthy_threshold"], health["healthy_threshold"]) == (int(fall), int(rise))
    [retries] = re.findall(r"(?m)^    retries (\d)", HAPROXY)
    assert route()["retry_policy"]["num_retries"] == int(retries)
    assert route()["retry_policy"]["retriable_status_codes"] == [503]


def test_cells_are_told_apart_whatever_their_addresses() -> None:
    names = [each["hostname"] for each in endpoints(CELLS)]
    assert len(set(names)) == len(names) == 2


def closed() -> None:
    return None


def test_what_no_cell_can_answer_is_an_error_of_the_apis_form(tmp_path: Path) -> None:
    needed("envoy")
    with scripted_gateway(closed) as one, scripted_gateway(closed) as other:
        addresses = [one.address, other.address]
        with envoy_cells(addresses, tmp_path) as envoy:
            wait_until(lambda: set(envoy.servers().values()) == {"UP"}, message=envoy.servers)
            wait_until(lambda: all_reached(envoy.url, [one, other]))
            assert envoy.ready()
            refused = httpx.post(envoy.url + PATH, content=b"{}", timeout=60)
            one.ready = other.ready = False
            wait_until(lambda: set(envoy.servers().values()) == {"DOWN"}, message=envoy.servers)
            assert not envoy.ready()
            down = httpx.post(envoy.url + PATH, content=b"{}", timeout=60)
            odd = httpx.get(envoy.url + "/v1/models", headers={"x": "x" * 40_000}, timeout=60)
    for answer in (refused, down):
        assert answer.status_code == 503
        assert answer.json()["error"] == {
            "message": "no cell is ready",
            "type": "server_error",
            "param": None,
            "code": "no_cell",
        }
        assert answer.headers["retry-after"] == "1"
    assert odd.status_code == 431
    assert odd.json()["error"]["type"] == "invalid_request_error"


@pytest.fixture
def both(tmp_path: Path) -> Any:
    needed("envoy")
    with (
        scripted_gateway() as one,
        scripted_gateway() as other,
        envoy_cells([one.address, other.address], tmp_path) as envoy,
    ):
        wait_until(lambda: set(envoy.servers().values()) == {"UP"}, message=envoy.servers)
        wait_until(lambda: all_reached(envoy.url, [one, other]))
        yield envoy.url, envoy.operations, (one, other)


def test_requests_come_as_they_were_sent(both: tuple[str, str, tuple[Scripted, ...]]) -> None:
    """The path, to the letter, and the id."""
    url, _, there = both
    path = "/v1/models/an%2Fid%20x"
    got = httpx.get(url + path, headers={"x-request-id": "mine"}, timeout=60)
    [asked] = [each for script in there for each in script.asked]
    assert asked.path == path
    assert got.json()["x-request-id"] == "mine"


def test_it_can_be_told_to_leave_when_what_is_open_has_ended(tmp_path: Path) -> None:
    needed("envoy")
    open_ = threading.Event()

    def slow() -> int:
        open_.wait(60)
        return 200

    with (
        scripted_gateway(slow) as one,
        envoy_cells([one.address], tmp_path) as envoy,
        ThreadPoolExecutor(1) as pool,
    ):
        wait_until(lambda: set(envoy.servers().values()) == {"UP"}, message=envoy.servers)
        begun = pool.submit(httpx.post, envoy.url + PATH, content=b"{}", timeout=120)
        wait_until(lambda: len(one.asked) == 1)
        port = envoy.admin.rpartition(":")[2]
        with subprocess.Popen(
            ["bash", str(DRAIN)], env={**os.environ, "ADMIN_PORT": port, "GRACE": "1"}
        ) as draining:
            wait_until(lambda: status(envoy.url + "/health/ready") == 0)
            with pytest.raises(subprocess.TimeoutExpired):
                draining.wait(2)  # It looks each second.
            open_.set()
            assert begun.result().status_code == 200
            assert draining.wait(60) == 0
        assert len(one.asked) == 1


def test_it_is_left_when_nothing_is_open_for_a_while() -> None:
    """It isn't ready first, so that nobody comes where nobody listens; and a connection that is
    still open begins another request after a moment without any."""
    asked: list[str] = []
    active = iter([0, 1, 0, 10, 0, 0, 0])

    class Admin(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            what = self.rfile.readline().decode().split()[1].partition("?")[0]
            asked.append(what)
            while self.rfile.readline().strip():
                pass
            value = next(active) if what == "/stats" else "OK"
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
            self.wfile.write(head + f"http.clients.downstream_rq_active: {value}\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Admin) as admin:
        thread = threading.Thread(target=admin.serve_forever)
        thread.start()
        try:
            told = {"ADMIN_PORT": str(admin.server_address[1]), "GRACE": "0"}
            subprocess.run(["bash", str(DRAIN)], env={**os.environ, **told}, timeout=60, check=True)
        finally:
            admin.shutdown()
            thread.join()
    assert asked == ["/healthcheck/fail", "/drain_listeners", *7 * ["/stats"]]


def test_composes_health_check_says_whether_some_cell_is_ready(tmp_path: Path) -> None:
    needed("envoy")
    front = TREES["deploy/compose.two-cells-envoy.yml"]["services"]["haproxy"]
    kind, *command = front["healthcheck"]["test"]
    assert kind == "CMD"
    with scripted_gateway() as one, envoy_cells([one.address], tmp_path) as envoy:
        port = envoy.operations.rpartition(":")[2]
        asks = [word.replace("127.0.0.1/8404", f"127.0.0.1/{port}") for word in command]
        assert asks != command

        def healthy() -> bool:
            return subprocess.run(asks, timeout=60, capture_output=True).returncode == 0

        wait_until(healthy)
        one.ready = False
        wait_until(lambda: not healthy())


@pytest.mark.parametrize(
    "path", ["/metrics", "/Metrics", "/%6detrics", "//metrics", "/x/../metrics"]
)
def test_metrics_are_for_operators_however_they_are_spelt(
    both: tuple[str, str, tuple[Scripted, ...]], path: str
) -> None:
    url, operations, there = both
    host, port = url.removeprefix("http://").split(":")
    with httpx.Client(timeout=60) as client:
        request = client.build_request("GET", url)
        request.url = httpx.URL(scheme="http", host=host, port=int(port), raw_path=path.encode())
        got = client.send(request)
    assert got.status_code == 404
    assert got.json()["error"]["message"] == "there is nothing at this path"
    assert not [each for script in there for each in script.asked]
    assert "envoy_cluster_upstream_rq" in httpx.get(f"http://{operations}/metrics").text


def test_a_cell_that_cannot_be_reached_is_left_alone_whatever_its_health(tmp_path: Path) -> None:
    needed("envoy")
    nobody = f"127.0.0.1:{free_port()}"
    with scripted_gateway() as health, scripted_gateway() as sound:
        port = int(health.address.rpartition(":")[2])
        addresses = [nobody, sound.address]
        with envoy_cells(addresses, tmp_path, health_ports={nobody: port}) as envoy:
            wait_until(lambda: set(envoy.servers().values()) == {"UP"}, message=envoy.servers)
            wait_until(lambda: all_reached(envoy.url, [sound]))

            def left_alone() -> bool:
                for n in range(10):
                    headers = {"x-session-id": f"s{n}"}
                    got = httpx.post(envoy.url + PATH, content=b"{}", headers=headers, timeout=60)
                    assert got.status_code == 200
                return envoy.servers() == {"cell1": "DOWN", "cell2": "UP"}

            wait_until(left_alone, message=envoy.servers)
            assert health.ready


def test_a_cell_that_is_full_stays(tmp_path: Path) -> None:
    """What belongs to it comes back to it as soon as it has room."""
    needed("envoy")
    with (
        scripted_gateway(lambda: 503) as full,
        scripted_gateway() as other,
        envoy_cells([full.address, other.address], tmp_path) as envoy,
    ):
        wait_until(lambda: set(envoy.servers().values()) == {"UP"}, message=envoy.servers)
        wait_until(lambda: all_reached(envoy.url, [full, other]))
        for n in range(60):
            headers = {"x-session-id": f"s{n}"}
            got = httpx.post(envoy.url + PATH, content=b"{}", headers=headers, timeout=60)
            assert got.status_code == 200
        assert len(full.asked) > 10
        assert set(envoy.servers().values()) == {"UP"}


@pytest.mark.parametrize(("size", "kept"), [(200_000, True), (400_000, False)])
def test_a_body_is_tried_elsewhere_as_long_as_it_fits(
    tmp_path: Path, size: int, kept: bool
) -> None:
    """A larger one goes to its own cell all the same."""
    needed("envoy")
    with (
        scripted_gateway(lambda: 503) as full,
        scripted_gateway() as other,
        envoy_cells([full.address, other.address], tmp_path) as envoy,
    ):
        wait_until(lambda: set(envoy.servers().values()) == {"UP"}, message=envoy.servers)
        wait_until(lambda: all_reached(envoy.url, [full, other]))
        found = set()
        for n in range(12):
            headers = {"x-session-id": f"s{n}"}
            body = b"x" * size
            got = httpx.post(envoy.url + PATH, content=body, headers=headers, timeout=60)
            found.add(got.status_code)
        assert full.asked
        assert {len(each.body) for each in [*full.asked, *other.asked]} == {size}
        assert found == ({200} if kept else {200, 503})
