"""What state costs that cells share, and what a `kill -9` of its servers does.

    python -m loadtest.shared_state --before REVISION             # minutes
    python -m loadtest.shared_state --rates 200 --seconds 2 --rounds 1 --output FOLDER

Starts a redis-server and a PostgreSQL of its own.  Processes ask them by the gateway's own classes,
at fixed times: limits of requests and tokens for each request, or a response that is stored and one
that is read.  The same with the packages of --before, in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import redis as redis_client

from loadtest.report import ROOT, Document, Flags, Measurement, percentile, say
from loadtest.shared_state.page import draw, faults, text
from loadtest.shared_state.servers import (
    Askers,
    check_programs,
    pgbench,
    postgres,
    processor_seconds,
    redis,
    redis_benchmark,
    tree,
)
from penstock.process.machine import version_of
from penstock_kernels.cpu.library import instruction_set
from testing.postgres_server import PostgresServer
from testing.redis_server import RedisServer

MUCH = 10**9
"""A limit that nobody reaches."""
KEYS = 100
TENANTS = 20
FULL = 10_000
"""Responses of each tenant that are there before: as many as it may have by default."""
KILL_AFTER, DEAD_FOR, GOES_ON = 4.0, 3.0, 8.0
"""Seconds."""
USED = 0.8
"""What keys have used of their limits when Redis is killed."""
KILLS = {
    "refuse, nothing on disk": ("refuse", ()),
    "refuse, append-only file": ("refuse", ("--appendonly", "yes", "--appendfsync", "everysec")),
    "local, nothing on disk": ("local", ()),
}


def measure(flags: Flags) -> Document:
    """Rates in turns with and without the change; then kills, with it."""
    check_programs()
    document: Document = {
        "processes": flags.processes,
        "seconds": flags.seconds,
        "rounds": flags.rounds,
        "isa": instruction_set(),
        "load": psutil.getloadavg()[0],
        "versions": {name: version_of(name) for name in ("limits", "redis", "psycopg")},
    }
    with tree(flags.before) as before:
        trees = {"before": before, "after": ROOT}
        with redis() as server:
            known = redis_client.Redis.from_url(server.url).info()
            document["versions"]["redis-server"] = known["redis_version"]
            document["redis_benchmark"] = redis_benchmark(server)
            document["limits"] = rates(flags, trees, lambda *run: limits_at(server, *run))
        with postgres() as database:
            document["versions"]["PostgreSQL"] = server_version(database)
            document["pgbench"] = pgbench(database, flags.seconds)
            urls = {path: fill(database, name, path) for name, path in trees.items()}
            document["responses"] = rates(
                flags, trees, lambda *run: responses_at(database.pid, urls, *run)
            )
            document["postgres_kill"] = postgres_killed(flags, database, urls[ROOT])
    document["redis_kills"] = {
        name: redis_killed(flags, fallback, options) for name, (fallback, options) in KILLS.items()
    }
    return document


def rates(
    flags: Flags,
    trees: dict[str, Path],
    at: Callable[[Flags, Path, float], dict[str, Any]],
) -> list[dict[str, Any]]:
    """A row for each rate and tree: the median of the rounds, in which trees take turns."""
    rows = []
    for rate in flags.rates:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
        for _ in range(flags.rounds):
            for name, path in trees.items():
                found[name].append(at(flags, path, rate))
        for name, runs in found.items():
            row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            rows.append({"offered": rate, "tree": name, **row})
            say(json.dumps(rows[-1]))
    return rows


def limits_at(server: RedisServer, flags: Flags, path: Path, rate: float) -> dict[str, Any]:
    """Limits of requests and of tokens, of KEYS keys."""
    client = redis_client.Redis.from_url(server.url)
    client.flushall()
    task = {"work": "limits", "url": server.url, "keys": KEYS, "requests": MUCH, "tokens": MUCH}
    return asked(flags, path, task, rate, server.pid, lambda: reads_of(client))


def reads_of(client: redis_client.Redis) -> int:
    """How often the server has read from connections: pipelines count once."""
    return int(client.info("stats")["total_reads_processed"])  # type: ignore[index]


def responses_at(
    pid: int, urls: dict[Path, str], flags: Flags, path: Path, rate: float
) -> dict[str, Any]:
    """Responses of TENANTS tenants, each of which has as many as it may."""
    task = {"work": "responses", "url": urls[path], "tenants": TENANTS, "pool": flags.pool}
    return asked(flags, path, task, rate, pid, lambda: 0)


def asked(
    flags: Flags,
    path: Path,
    task: dict[str, Any],
    rate: float,
    pid: int,
    reads: Callable[[], int],
) -> dict[str, Any]:
    """What all processes together reached."""
    each = {"rate": rate / flags.processes, "seconds": flags.seconds}
    tasks = [{**task, **each, "process": number} for number in range(flags.processes)]
    askers = Askers(path, tasks)
    process = psutil.Process(pid)
    computed, read = processor_seconds(process), reads()
    askers.begin()
    found = askers.answers()
    count = outcomes(found)["200"] or 1
    latencies = sorted(latency for each in found for latency in each["latencies"])
    return {
        "reached": count / max(each["seconds"] for each in found),
        "p50": statistics.median(latencies),
        "p99": percentile(latencies, 0.99),
        "processor_us": 1e6 * sum(each["processor"] for each in found) / count,
        "server_us": 1e6 * (processor_seconds(process) - computed) / count,
        "reads": (reads() - read) / count,
        "refused": sum(n for outcome, n in outcomes(found).items() if outcome != "200"),
    }


def outcomes(found: Iterable[dict[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in found:
        total.update(each["outcomes"])
    return total


def fill(server: PostgresServer, name: str, path: Path) -> str:
    """The URL of a database with the tables of the tree at `path`, and what tenants have so far."""
    url = server.url.replace("/postgres", f"/{name}")
    with connection_to(server.url) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
    tables = Askers(path, [{"work": "tables", "url": url}])
    tables.begin()
    tables.answers()
    with connection_to(url) as connection:
        connection.execute(
            "INSERT INTO penstock_responses SELECT concat('t', mod(n, %s)), concat('old_', n), NULL"
            ", n, 4000000000, repeat('x', 500), repeat('y', 1500), 2000"
            " FROM generate_series(1, %s) n",
            (TENANTS, TENANTS * FULL),
        )
        connection.execute("VACUUM ANALYZE")
    return url


def connection_to(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def server_version(server: PostgresServer) -> str:
    with connection_to(server.url) as connection:
        return str(connection.execute("SHOW server_version").fetchall()[0][0]).split()[0]


def answers_beside_kill(
    tasks: list[dict[str, Any]], server: RedisServer | PostgresServer
) -> list[dict[str, Any]]:
    """What the tasks' processes say, whose server is killed and started again meanwhile. When that
    happens is a part of what is measured."""
    askers = Askers(ROOT, tasks)
    askers.begin()
    time.sleep(KILL_AFTER)
    server.kill()
    time.sleep(DEAD_FOR)
    server.start()
    return askers.answers()


def redis_killed(flags: Flags, fallback: str, options: tuple[str, ...]) -> dict[str, Any]:
    """Keys that go beyond their limits, with Redis killed before: what each was let do."""
    seconds = KILL_AFTER + DEAD_FOR + GOES_ON
    limit = round(flags.kill_rate * KILL_AFTER / USED / flags.kill_keys)
    task = {
        "work": "limits",
        "keys": flags.kill_keys,
        "requests": limit,
        "tokens": MUCH,
        "fallback": fallback,
        "rate": flags.kill_rate / flags.processes,
        "seconds": seconds,
    }
    with redis(*options) as server:
        found = answers_beside_kill([{**task, "url": server.url}] * flags.processes, server)
    accepted: Counter[str] = Counter()
    for each in found:
        accepted.update(each["accepted"])
    said = outcomes(found)
    return {
        **gap(found),
        "limit": limit,
        "most": max(accepted.values()),
        "accepted": said["200"],
        "over_limit": said["429"],
        "unavailable": said["503"],
    }


def gap(found: list[dict[str, Any]]) -> dict[str, Any]:
    """From the first refusal with 503 to the last, seconds."""
    begun = [each["refused_from"] for each in found if each["refused_from"] is not None]
    ended = [each["refused_to"] for each in found if each["refused_to"] is not None]
    return {"dead_for": DEAD_FOR, "refused_for": max(ended) - min(begun) if begun else 0.0}


def postgres_killed(flags: Flags, server: PostgresServer, url: str) -> dict[str, Any]:
    """What was acknowledged, and what is there."""
    task = {
        "work": "responses",
        "url": url,
        "tenants": TENANTS,
        "pool": flags.pool,
        "rate": min(flags.rates) / flags.processes,
        "seconds": KILL_AFTER + DEAD_FOR + GOES_ON,
        "list": True,
    }
    found = answers_beside_kill([{**task, "process": n} for n in range(flags.processes)], server)
    acknowledged = {id for each in found for id in each["stored"]}
    with connection_to(url) as connection:
        there = {row[0] for row in connection.execute("SELECT id FROM penstock_responses")}
    said = outcomes(found)
    return {
        **gap(found),
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged - there),
        "unavailable": said["503"],
    }


COMMAND = Measurement(
    "shared_state",
    __doc__,
    measure,
    text,
    {
        "--before": ("main", "commit that is measured beside this tree"),
        "--rates": {"type": float, "nargs": "+", "default": [200.0, 10_000.0]},
        "--seconds": (6.0, "of each run"),
        "--rounds": (3, "of each rate, before and after in turns"),
        "--processes": (2, "that ask"),
        "--pool": (4, "connections of each process to PostgreSQL"),
        "--kill-rate": (300.0, "requests a second while Redis is killed"),
        "--kill-keys": (10, "whose limits are reached then"),
    },
    draw=draw,
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
