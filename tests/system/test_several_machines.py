"""The commands of the guide to several machines, each with a network of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.prepare import prepare
from testing.serving import PATIENCE, Server, wait_until
from tests.docs.snippets import lines_of, snippets

pytestmark = pytest.mark.timeout(600)

PAGE = "docs/guides/several-machines.md"
ENGINE, WORKER, OTHER_WORKER, GATEWAY = (f"10.0.0.{last}" for last in (10, 11, 12, 13))
_COMMANDS = [line for each in snippets(PAGE) for line in lines_of(each.code)]
KEYS, PREPARE, ONE_ENGINE, ONE_WORKER, ONE_GATEWAY, _, _, *TWO_RANKS = _COMMANDS[:10]
PROMPT = "The capital of France is"


class Machines:
    """Networks of their own, joined by a bridge in one more, which only root can make. They are
    removed with what runs in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names = {
            address: f"penstock-{os.getpid()}-{address.rpartition('.')[2]}"
            for address in (ENGINE, WORKER, OTHER_WORKER, GATEWAY)
        }
        self._bridge = f"penstock-{os.getpid()}-bridge"
        self._running: list[subprocess.Popen[bytes]] = []

    def join(self) -> None:
        ip("netns", "add", self._bridge)
        ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._bridge, "link", "set", "bridge", "up")
        for address, name in self._names.items():
            end = f"to{address.rpartition('.')[2]}"
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "add", "net", "type", "veth", "peer", "name", end,
               "netns", self._bridge)  # fmt: skip
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "net")
            ip("-n", name, "link", "set", "net", "up")
            ip("-n", self._bridge, "link", "set", end, "master", "bridge", "up")

    def command(self, address: str, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._names[address], *words]

    def start(self, address: str, line: str) -> None:
        """Starts a command of the page there."""
        words = shlex.split(line.replace("/srv/penstock", str(self.folder)))
        assert words[0] == "penstock"
        path = self.folder / f"{len(self._running)}-{words[1]}.log"
        with path.open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    self.command(address, [sys.executable, "-m", "penstock", *words[1:]]),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def get(self, address: str, path: str, *flags: str) -> str:
        """What the gateway says to somebody at that address."""
        url = f"http://{GATEWAY}:8000{path}"
        command = ["curl", "-sS", "--fail-with-body", "--max-time", "200", *flags, url]
        done = subprocess.run(
            self.command(address, command), capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def close(self) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in (*self._names.values(), self._bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    found = Machines(tmp_path)
    try:
        try:
            found.join()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"networks can't be made here, which needs root and `ip`: {error}")
        yield found
    finally:
        found.close()


Ask = Callable[[str], str]


@pytest.fixture
def ask(machines: Machines, tmp_path: Path) -> Ask:
    """Keys are made as the page says, and a gateway is started: what it answers somebody at an
    address, once it is ready."""
    made = [[sys.executable, "-m", *shlex.split(line)] for line in (KEYS, "penstock key alice")]
    subprocess.run(made[0], cwd=tmp_path, check=True, capture_output=True)
    listed = subprocess.run(made[1], check=True, capture_output=True, text=True)
    (tmp_path / "keys.yaml").write_text(listed.stdout, encoding="utf-8")
    (tmp_path / "keys.yaml").chmod(0o600)
    found = re.search(r"sk-\S+", listed.stderr)
    assert found is not None
    assert PREPARE.split()[-1] == "/srv/penstock/model"
    (tmp_path / "model").symlink_to(prepare(PREPARE.split()[2]))
    machines.start(GATEWAY, ONE_GATEWAY)

    def answer(address: str) -> str:
        wait_until(lambda: machines.get(address, "/health/ready") != "", 4 * PATIENCE)
        fields = ["-H", f"authorization: Bearer {found[0]}", "-H", "content-type: application/json"]
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8}
        told = machines.get(address, "/v1/completions", *fields, "-d", json.dumps(body))
        return str(json.loads(told)["choices"][0]["text"])

    return answer


def test_a_worker_elsewhere(machines: Machines, ask: Ask, server: Server) -> None:
    machines.start(WORKER, ONE_WORKER)
    machines.start(ENGINE, ONE_ENGINE)
    assert ask(OTHER_WORKER) == server.complete(PROMPT)


def test_two_ranks_elsewhere(machines: Machines, ask: Ask, server: Server) -> None:
    for address, line in zip((ENGINE, WORKER, OTHER_WORKER), TWO_RANKS, strict=True):
        assert address == ENGINE or f"--rank-host {address}" in line
        machines.start(address, line)
    assert ask(ENGINE) == server.complete(PROMPT)
