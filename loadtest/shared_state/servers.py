"""Redis and PostgreSQL of the measurement's own, the processes that ask them, and what their own
tools reach."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from loadtest.report import ROOT, SetupError
from testing.postgres_server import PostgresServer, has_postgres, program
from testing.redis_server import RedisServer, has_redis

WORKER = Path(__file__).with_name("worker.py")


def check_programs() -> None:
    """Raises SetupError where one is missing."""
    if not has_redis() or not has_postgres():
        raise SetupError("needs redis-server and PostgreSQL (Debian: redis-server, postgresql)")


@contextlib.contextmanager
def redis(*options: str) -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        server = RedisServer(Path(folder), *options)
        try:
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def postgres() -> Iterator[PostgresServer]:
    """With its own defaults, but for what 1 GiB of memory allows."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "server", "shared_buffers=256MB")
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def tree(revision: str) -> Iterator[Path]:
    """The project as of a commit, in a folder of its own. Raises SetupError."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        path = Path(folder) / "tree"
        command = ["git", "-C", str(ROOT), "archive", revision, "services", "shared"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as archive:
            path.mkdir()
            subprocess.run(["tar", "-x", "-C", str(path)], stdin=archive.stdout, check=False)
        if archive.returncode:
            raise SetupError(f"git knows no commit {revision}")
        yield path


class Askers:
    """Processes that ask at the same time.  tree: whose packages they have.  tasks: of each, as
    worker.py reads it."""

    def __init__(self, tree: Path, tasks: Sequence[dict[str, Any]]) -> None:
        paths = os.pathsep.join([str(tree / "services"), str(tree / "shared")])
        self._children = [
            subprocess.Popen(
                [sys.executable, str(WORKER), json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
                text=True,
            )
            for task in tasks
        ]
        for child in self._children:
            self._line(child)

    def begin(self) -> None:
        for child in self._children:
            print(file=child.stdin, flush=True)

    def answers(self) -> list[dict[str, Any]]:
        """Waits until all have ended."""
        found = [dict(json.loads(self._line(child))) for child in self._children]
        self.end()
        return found

    def end(self) -> None:
        """Idempotent."""
        for child in self._children:
            child.kill()
            child.communicate()

    def _line(self, child: subprocess.Popen[str]) -> str:
        line = child.stdout.readline() if child.stdout else ""
        if not line:
            self.end()
            raise SetupError("a process that asks has left")
        return line


def processor_seconds(server: psutil.Process) -> float:
    """What a server has computed so far, with the processes that it started."""
    ended = server.cpu_times()
    total = ended.children_user + ended.children_system
    for each in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def redis_benchmark(server: RedisServer) -> float:
    """Increments a second by Redis' own tool, one in each round trip of 50 connections."""
    command = ["redis-benchmark", "-p", str(server.port), "-t", "incr", "-n", "50000", "--csv"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    return float(said.splitlines()[-1].split(",")[1].strip('"'))


def pgbench(server: PostgresServer, seconds: float) -> float:
    """Transactions a second by PostgreSQL's own tool: simple updates, on 8 connections."""
    where = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "penstock", "postgres"]
    common: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "timeout": 300}
    subprocess.run([program("pgbench"), "-i", "-q", "-s", "10", *where], **common)
    run = [program("pgbench"), "-N", "-c", "8", "-j", "2", "-T", str(round(seconds)), *where]
    said = subprocess.run(run, **common).stdout
    found = re.search(r"tps = ([\d.]+)", said)
    if found is None:
        raise SetupError("pgbench says nothing of its rate")
    return float(found[1])
