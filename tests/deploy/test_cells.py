"""haproxy and Envoy in front of cells, seen by scripted ones: what belongs together stays together,
and what a cell can't have goes to another."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from deploy.local import CELLS_CONFIG, cells
from deploy.local_envoy import envoy_cells
from testing.serving import wait_until
from tests.deploy.programs import needed
from tests.deploy.scripted_gateway import Scripted, all_reached, scripted_gateway

PATH = "/v1/completions"
KINDS = ("x-session-id", "authorization", "x-api-key")
SESSIONS = 60
ROUNDS = 5
"""In which two in a row are to be alike: a cell whose check is late is left for a while."""
MANY = 2_000


class Front(Protocol):
    """A load balancer that is running."""

    @property
    def url(self) -> str: ...

    def servers(self) -> dict[str, str]: ...

    def ready(self) -> bool: ...


Starts = Callable[..., AbstractContextManager[tuple[Front, list[Scripted]]]]


def haproxy_cells(
    addresses: list[str], folder: Path, load: int | None
) -> AbstractContextManager[Front]:
    settings = {} if load is None else {"PENSTOCK_CELL_LOAD": str(load)}
    return cells(addresses, folder, settings=settings)


def envoys(addresses: list[str], folder: Path, load: int | None) -> AbstractContextManager[Front]:
    return envoy_cells(addresses, folder, load=load)


@pytest.fixture(params=[("haproxy", haproxy_cells), ("envoy", envoys)], ids=["haproxy", "envoy"])
def balanced(request: pytest.FixtureRequest, tmp_path: Path) -> Starts:
    """Starts a scripted cell for each answer, and one of the load balancers with all of them in
    rotation."""
    program, starts = request.param
    needed(program)

    @contextlib.contextmanager
    def started(
        *answers: Callable[[], int | None], load: int | None = None
    ) -> Iterator[tuple[Front, list[Scripted]]]:
        with contextlib.ExitStack() as stack:
            there = [stack.enter_context(scripted_gateway(answer)) for answer in answers]
            addresses = [each.address for each in there]
            balancer = stack.enter_context(starts(addresses, tmp_path, load))
            everyone = {f"cell{n}": "UP" for n in range(1, len(answers) + 1)}
            wait_until(lambda: balancer.servers() == everyone, message=balancer.servers)
            wait_until(lambda: all_reached(balancer.url, there))
            yield balancer, there

    return started


def ok() -> int:
    return 200


def cell_of(balancer: Front, there: list[Scripted], headers: dict[str, str]) -> int:
    """Which cell gets a request with these headers."""
    before = [len(each.asked) for each in there]
    assert httpx.post(balancer.url + PATH, content=b"{}", headers=headers).status_code == 200
    [got] = [n for n, each in enumerate(there) if len(each.asked) > before[n]]
    return got


@pytest.mark.parametrize("kind", KINDS)
def test_what_belongs_together_goes_to_one_cell(balanced: Starts, kind: str) -> None:
    with balanced(ok, ok, ok) as (balancer, there):
        of, found = {}, {0: -1}
        for _ in range(ROUNDS):
            of, found = (
                found,
                {n: cell_of(balancer, there, {kind: f"it-{n}"}) for n in range(SESSIONS)},
            )
            if found == of:
                break
        assert found == of
    counts = [list(of.values()).count(cell) for cell in range(3)]
    assert min(counts) >= SESSIONS / 3 / 2.5, counts


def test_cells_have_even_shares_of_many_sessions(balanced: Starts) -> None:
    """Within a tenth of the mean; with the 16 points on the circle that haproxy gives a server by
    default, one of these four would have 0.73 times the mean. One request at a time: load has no
    part in it."""
    with balanced(*[ok] * 4) as (balancer, there), httpx.Client(base_url=balancer.url) as client:
        for n in range(MANY):
            got = client.post(PATH, content=b"{}", headers={"x-session-id": f"it-{n}"})
            assert got.status_code == 200
        shares = [4 * len(each.asked) / MANY for each in there]
    assert sum(shares) == 4
    assert 0.9 <= min(shares) <= max(shares) <= 1.1, shares


def test_the_session_counts_before_the_key_and_the_key_before_the_address(balanced: Starts) -> None:
    with balanced(ok, ok) as (balancer, there):

        def cell(**headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return cell_of(balancer, there, named)

        by_session = {n: cell(x_session_id=f"s{n}") for n in range(12)}
        assert set(by_session.values()) == {0, 1}
        for n, found in by_session.items():
            assert cell(x_session_id=f"s{n}", authorization="Bearer one for all") == found
        assert {cell() for _ in range(12)} in ({0}, {1})
        assert {cell(authorization=f"Bearer {n}") for n in range(12)} == {0, 1}


def test_a_cell_that_leaves_moves_its_own_share_alone_and_gets_it_back(balanced: Starts) -> None:
    with balanced(ok, ok, ok) as (balancer, there):

        def all_cells() -> dict[int, int]:
            return {n: cell_of(balancer, there, {"x-session-id": f"s{n}"}) for n in range(SESSIONS)}

        before = all_cells()
        there[1].ready = False
        wait_until(lambda: balancer.servers()["cell2"] == "DOWN", message=balancer.servers)
        wait_until(lambda: 1 not in all_cells().values())
        without = all_cells()
        assert 1 not in without.values()
        assert {n: c for n, c in without.items() if before[n] != 1} == {
            n: c for n, c in before.items() if c != 1
        }
        assert {c for n, c in without.items() if before[n] == 1} == {0, 2}, "shared by the others"
        there[1].ready = True
        wait_until(lambda: balancer.servers()["cell2"] == "UP", message=balancer.servers)
        wait_until(lambda: 1 in all_cells().values())
        assert all_cells() == before


@pytest.mark.parametrize("answer", [lambda: 503, lambda: None], ids=["refuses", "dies"])
def test_what_a_cell_refuses_another_takes(
    balanced: Starts, answer: Callable[[], int | None]
) -> None:
    with balanced(answer, ok) as (balancer, (refusing, serving)):
        for n in range(12):
            headers = {"x-session-id": f"s{n}"}
            got = httpx.post(balancer.url + PATH, content=b"{}", headers=headers, timeout=60)
            assert got.status_code == 200
        assert len(serving.asked) == 12
        assert refusing.asked, "the test tests nothing if nobody was refused"


def test_a_session_that_is_too_much_for_a_cell_spills_over(balanced: Starts) -> None:
    """All of one session: of many open at once, the other cell gets what is beyond twice the
    mean."""
    open_ = threading.Event()

    def slow() -> int:
        open_.wait(60)
        return 200

    with (
        balanced(slow, slow, load=120) as (balancer, there),
        ThreadPoolExecutor(40) as pool,
        httpx.Client(base_url=balancer.url, headers={"x-session-id": "one"}, timeout=120) as client,
    ):
        sent = [pool.submit(client.post, PATH, content=b"{}") for _ in range(40)]
        wait_until(lambda: sum(len(each.asked) for each in there) == 40)
        counts = sorted(len(each.asked) for each in there)
        open_.set()
        assert {each.result().status_code for each in sent} == {200}
    assert 20 <= counts[1] <= 26, counts


def test_a_machine_that_vanishes_is_noticed(balanced: Starts) -> None:
    """While an answer is open, the kernel asks whether the cell is still there."""
    open_ = threading.Event()

    def slow() -> int:
        open_.wait(60)
        return 200

    with balanced(slow, slow) as (balancer, there), ThreadPoolExecutor(1) as pool:
        sent = pool.submit(httpx.post, balancer.url + PATH, content=b"{}", timeout=120)
        wait_until(lambda: any(each.asked for each in there))
        ports = {int(each.address.rpartition(":")[2]) for each in there if each.asked}
        wait_until(lambda: KEEPALIVE in timers(ports), message=lambda: timers(ports))
        open_.set()
        assert sent.result().status_code == 200


KEEPALIVE = "02"


def timers(ports: set[int]) -> set[str]:
    """Of open connections to these ports of loopback: proc_pid_net(5), "tr"."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        row[5].partition(":")[0]
        for row in rows
        if int(row[2].partition(":")[2], 16) in ports and row[3] == "01"
    }


def test_metrics_are_not_for_clients(balanced: Starts) -> None:
    with balanced(ok, ok) as (balancer, _):
        assert httpx.get(balancer.url + "/metrics").status_code == 404
        assert balancer.ready()


def check(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [needed("haproxy"), "-c", "-V", "-f", str(CELLS_CONFIG)],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("count", [2, 8])
def test_haproxy_accepts_it_without_a_warning(count: int) -> None:
    said = check({f"PENSTOCK_CELL_{n}": f"127.0.0.1:{8000 + n}" for n in range(1, count + 1)})
    assert said.returncode == 0, said.stderr
    assert "WARNING" not in said.stderr, said.stderr


def test_a_cell_may_have_a_name_that_nobody_knows_yet() -> None:
    """It is looked up again and again, so cells may come after haproxy."""
    said = check({"PENSTOCK_CELL_1": "cell-1.invalid:8000", "PENSTOCK_CELL_2": "cell-2.invalid:80"})
    assert said.returncode == 0, said.stderr
    (servers,) = re.findall(r"(?m)^    default-server (.+)$", CELLS_CONFIG.read_text())
    assert "resolvers dns" in servers


def test_one_cell_is_none() -> None:
    said = check({"PENSTOCK_CELL_1": "127.0.0.1:8001"})
    assert said.returncode
    assert "PENSTOCK_CELL_2 must be set" in said.stderr
