"""Whether every query of the dashboard, the alerts and the recording rules finds data.

    python -m deploy.check_queries [--json FILE] [--dashboard FILE ...] [--one-port]

Starts a system with the default model, haproxy before it, Redis and Prometheus beside it, with this
folder's configuration; makes traffic that moves everything that is counted (several tenants, a KV
cache so small that requests are swapped, deadlines, refusals, clients that leave, a worker that is
killed); then asks every query.  What an alert compares is asked without the comparison, since an
alert that doesn't fire has no data: see deploy/queries.py.  Exit code 1 if one finds nothing, or
nothing but NaN.

With --dashboard, the queries are those of other dashboards instead: exports of Grafana, such as the
ones that vLLM publishes.  --one-port: as a plain `penstock serve` is, where the gateway alone tells
Prometheus everything.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy.local import NotThere, Prometheus, free_port, haproxy, prometheus, redis, running, wait
from deploy.other_dashboards import dashboard_queries
from deploy.queries import Query, everything
from deploy.traffic import ADMIN, Traffic, key_file, kill_worker

SETTINGS = (
    *("--num-kv-blocks", "40", "--host-kv-gib", "0.02", "--preemption-mode", "swap"),
    *("--max-model-len", "512", "--max-num-seqs", "8", "--max-waiting-requests", "6"),
    *("--scheduling-policy", "fair", "--shutdown-timeout", "1"),
)
WARM = 15.0
"""Seconds of traffic before the worker is killed, and again after it has come back."""
PATIENCE = 60.0
"""Seconds in which every query must find something."""
RECOVERY = 180.0
"""Seconds until streams go on after the worker's death; on an idle machine it takes five."""


@dataclass(frozen=True)
class Answer:
    """series: so many with a number.  problem: empty, or why it is no good."""

    where: str
    expression: str
    series: int
    problem: str = ""


@dataclass(frozen=True)
class Running:
    """A system that is looked at. pid: of the supervisor.  url: of haproxy."""

    pid: int
    url: str
    prometheus: Prometheus


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the answers to this file")
    parser.add_argument(
        "--dashboard", type=Path, action="append", help="ask the queries of this dashboard instead"
    )
    parser.add_argument(
        "--one-port", action="store_true", help="engine core and worker have no metrics ports"
    )
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="pst-") as folder:
            answers = check(Path(folder), arguments.dashboard or (), one_port=arguments.one_port)
    except (NotThere, OSError, ValueError) as missing:
        print(f"deploy.check_queries: {missing}", file=sys.stderr)
        return 2
    print(report(answers))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in answers], indent=2) + "\n")
    return 1 if any(each.problem for each in answers) else 0


def check(folder: Path, dashboards: Sequence[Path] = (), *, one_port: bool = False) -> list[Answer]:
    """The answer to every query: of these dashboards, or of this folder's files where there are
    none. Raises NotThere when something does not come up, and ValueError for a file that is no
    dashboard."""
    with started(folder, one_port=one_port) as system, Traffic(system.url) as traffic:
        time.sleep(WARM)
        kill_worker(system.pid)
        # Until the engine core has seen it die, and streams go on.
        time.sleep(3)
        traffic.wait_served(RECOVERY)
        time.sleep(WARM)
        source = system.prometheus
        asked = [query for path in dashboards for query in dashboard_queries(path, source)]
        return ask_all(source, asked or everything())


def ask_all(source: Prometheus, queries: Sequence[Query]) -> list[Answer]:
    """Asks those again that found nothing, for PATIENCE seconds: traffic goes on meanwhile."""
    deadline = time.monotonic() + PATIENCE
    answers = {query: ask(source, query) for query in queries}
    while any(each.problem for each in answers.values()) and time.monotonic() < deadline:
        time.sleep(1)
        for query, answer in answers.items():
            if answer.problem:
                answers[query] = ask(source, query)
    return list(answers.values())


def ask(source: Prometheus, query: Query) -> Answer:
    """One query, now."""
    try:
        vector = source.query(query.expression)
    except ValueError as error:
        return Answer(query.where, query.expression, 0, f"refused: {error}")
    numbers = [each for each in vector if not math.isnan(float(each["value"][1]))]
    problem = "" if numbers else "nothing but NaN" if vector else "no data"
    return Answer(query.where, query.expression, len(numbers), problem)


@contextmanager
def started(folder: Path, *, one_port: bool = False) -> Iterator[Running]:
    """All of it, with every target up. one_port: without ports for the metrics of engine core and
    worker."""
    serve, admin, engine, worker = (free_port() for _ in range(4))
    keys = key_file(folder)
    command = [sys.executable, "-m", "penstock", "serve", *SETTINGS]
    command += ["--port", str(serve), "--admin-port", str(admin), "--api-keys", str(keys)]
    if not one_port:
        command += ["--engine-metrics-port", str(engine), "--worker-metrics-port", str(worker)]
    with ExitStack() as stack:
        command += ["--rate-limit-storage", stack.enter_context(redis(folder))]
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        log = folder / "serve.log"
        variables = {"XDG_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": str(threads())}
        process = stack.enter_context(running(command, log, variables))
        balancer = stack.enter_context(haproxy([f"127.0.0.1:{serve}"], folder))
        wait(balancer.ready, process, log, 180)
        targets = {
            "gateway": [f"127.0.0.1:{admin}"],
            "engine": [] if one_port else [f"127.0.0.1:{engine}"],
            "worker": [] if one_port else [f"127.0.0.1:{worker}"],
            "haproxy": [balancer.operations],
        }
        source = stack.enter_context(prometheus(targets, folder, token=ADMIN))
        number = sum(map(len, targets.values()))
        wait(lambda: all_up(source.targets(), number), process, log)
        yield Running(process.pid, balancer.url, source)


def all_up(targets: dict[str, str], number: int) -> bool:
    return len(targets) == number and set(targets.values()) == {"up"}


def threads() -> int:
    return max(1, len(os.sched_getaffinity(0)) - 1)


def report(answers: Sequence[Answer]) -> str:
    """For people."""
    bad = [each for each in answers if each.problem]
    lines = [f"{len(answers) - len(bad)} of {len(answers)} queries found data"]
    lines += [f"  {each.where}: {each.problem}\n    {each.expression.strip()}" for each in bad]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
