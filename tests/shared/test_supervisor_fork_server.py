"""Forks of the server are what executed processes would be, their parent is the supervisor, and
nothing that happens to the server costs more than time. Each test runs in programs of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from penstock.supervisor import child as child_module
from penstock.supervisor import fork_server
from penstock.supervisor.ahead import ForkedAhead
from penstock.supervisor.child import ChildSpec
from penstock.supervisor.restarts import RestartSettings
from tests.said import said as said_by

PROGRAM = """
import asyncio, json, os, random, signal, socket, subprocess, sys, threading, time, uuid
import psutil
from pathlib import Path
from penstock.supervisor import fork_server
from penstock.supervisor.fork_server import PATIENCE, ForkServer, serve

class Role:
    def imports(self, role):
        pass

    def run(self, words):
        {child}
        os._exit(0)

def read():
    known.append(Path("listed").read_text().split())

known = []

def tell(**said):
    os.write(int(os.environ["PIPE"]), (json.dumps(said) + "\\n").encode())

class Server:
    '''Keeps the process running, as the supervisor's Child does.'''

    def __init__(self, fd):
        self.fd, self.pid, self.starts = fd, 0, 0
        self.started, self.ended = asyncio.Event(), asyncio.Event()
        self.most, self.pause = {starts}, 0.0
        self.stopped = asyncio.get_running_loop().create_future()

    async def run(self):
        while self.starts < self.most:
            command = [sys.executable, __file__, str(self.fd)]
            process = await asyncio.create_subprocess_exec(*command, pass_fds=(self.fd,))
            self.pid, self.starts = process.pid, self.starts + 1
            self.started.set()
            await process.wait()
            self.ended.set()
            await asyncio.wait([self.stopped], timeout=self.pause)
        return "it was enough"

    def kill(self):
        if psutil.pid_exists(self.pid):
            os.kill(self.pid, signal.SIGKILL)

    async def stop(self, signum):
        self.most = 0
        self.stopped.set_result(None)
        self.kill()
        await self.ended.wait()

async def main():
    made = []
    server = ForkServer(lambda fd: made.append(Server(fd)) or made[-1], Path("listed"))
    own = made[0]
    running = asyncio.create_task(server.run())
    reading, writing = os.pipe()
    pipe = os.fdopen(reading)

    async def fork(*words):
        return await server.fork(words, [writing], {{"PIPE": str(writing)}})

    def heard():
        return json.loads(pipe.readline())

    try:
        {parent}
    finally:
        running.cancel()
        for each in made:
            each.kill()

if __name__ == "__main__":
    if len(sys.argv) > 1:
        {before}
        serve(int(sys.argv[1]), Role(), read)
    else:
        asyncio.run(main())
"""


def said(
    tmp_path: Any, parent: str, child: str = "pass", before: str = "pass", starts: int = 9
) -> Any:
    """What the supervisor has printed, as JSON, once it has ended. child: what a fork does.
    before: what the server does first.  starts: how often it is started at most."""

    def lines(code: str, depth: int) -> str:
        return textwrap.indent(textwrap.dedent(code), " " * depth).strip()

    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.format(
            parent=lines(parent, 8), child=lines(child, 8), before=lines(before, 8), starts=starts
        )
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_it_gets_its_words_environment_and_files_and_nothing_else(tmp_path: Any) -> None:
    found = said(
        tmp_path,
        """
        process = await fork("gateway", "--index", "1")
        code = await process.wait()
        print(json.dumps([heard(), writing, process.pid, os.getpid(), code]))
        """,
        """
        files = os.listdir("/proc/self/fd")
        files = sorted(int(n) for n in files if os.path.exists(f"/proc/self/fd/{n}"))
        tell(words=words, pid=os.getpid(), parent=os.getppid(), group=os.getpgid(0), files=files)
        os._exit(5)
        """,
    )
    told, writing, pid, parent, code = found
    assert told == {
        "words": ["gateway", "--index", "1"],
        "pid": pid,
        "parent": parent,
        "group": pid,
        "files": [0, 1, 2, writing],
    }
    assert code == 5


def test_a_signal_ends_it_and_is_told(tmp_path: Any) -> None:
    assert (
        said(
            tmp_path,
            """
            process = await fork("gateway")
            process.send_signal(signal.SIGTERM)
            print(json.dumps(await process.wait()))
            """,
            "time.sleep(60)",
        )
        == -15
    )


def test_no_two_draw_the_same(tmp_path: Any) -> None:
    drawn = said(
        tmp_path,
        """
        for process in [await fork("gateway") for _ in range(3)]:
            await process.wait()
        print(json.dumps([heard() for _ in range(3)]))
        """,
        "tell(random=random.getrandbits(64), id=str(uuid.uuid4()), bytes=os.urandom(8).hex())",
    )
    for name in ("random", "id", "bytes"):
        assert len({each[name] for each in drawn}) == 3


def test_one_that_is_asked_for_while_the_server_is_dead_comes_from_its_successor(
    tmp_path: Any,
) -> None:
    code, starts = said(
        tmp_path,
        """
        await own.started.wait()
        await (await fork("gateway")).wait()
        own.kill()
        await own.ended.wait()
        process = await fork("gateway")
        print(json.dumps([await process.wait(), own.starts]))
        """,
        "os._exit(4)",
    )
    assert (code, starts) == (4, 2)


def test_there_is_none_where_the_server_cannot_be_started(tmp_path: Any) -> None:
    assert said(
        tmp_path,
        "print(json.dumps([await fork('gateway'), await fork('gateway')]))",
        before="sys.exit(1)",
        starts=2,
    ) == [None, None]


def test_there_is_none_where_a_thread_of_the_server_could_hold_a_lock(tmp_path: Any) -> None:
    assert (
        said(
            tmp_path,
            "print(json.dumps(await fork('gateway')))",
            before="threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        )
        is None
    )


IN_TIME = """
        begun = time.monotonic()
        found = await fork("gateway")
        print(json.dumps([found, time.monotonic() - begun < PATIENCE]))
        """
"""Whether the wait ended before the time for a server that is there."""


def test_a_server_that_stands_still_is_not_waited_for_long(tmp_path: Any) -> None:
    stopped = """
        await (await fork("gateway")).wait()
        server._patience = PATIENCE
        os.kill(own.pid, signal.SIGSTOP)
        """
    assert said(tmp_path, stopped + IN_TIME.lstrip()) == [None, True]


def test_nor_is_one_that_does_so_before_its_first_fork(tmp_path: Any) -> None:
    before = "os.kill(os.getpid(), signal.SIGSTOP)"
    assert said(tmp_path, IN_TIME, before=before) == [None, True]


def test_nor_is_one_that_is_to_be_started_again_later(tmp_path: Any) -> None:
    gone = """
        own.pause = 600.0
        await own.started.wait()
        own.kill()
        await own.ended.wait()
        """
    assert said(tmp_path, gone + IN_TIME.lstrip()) == [None, True]


def test_one_that_nobody_waits_for_any_more_ends(tmp_path: Any) -> None:
    """Its place may have been filled meanwhile."""
    assert said(
        tmp_path,
        """
        await own.started.wait()
        os.kill(own.pid, signal.SIGSTOP)
        asking = asyncio.create_task(fork("gateway"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        os.kill(own.pid, signal.SIGCONT)
        process = await fork("gateway", "second")  # Served after the first.
        await process.wait()
        os.close(writing)
        print(json.dumps([json.loads(line)["words"] for line in pipe]))
        """,
        "tell(words=words)",
    ) == [["gateway", "second"]]


def test_orphans_are_waited_for(tmp_path: Any) -> None:
    """As the helpers of a gateway that is killed, which the supervisor never knew."""
    found = said(
        tmp_path,
        """
        process = await fork("gateway")
        orphan = heard()["pid"]
        code = await process.wait()
        deadline = time.monotonic() + 60
        while psutil.pid_exists(orphan) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        print(json.dumps([code, psutil.pid_exists(orphan)]))
        """,
        """
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        tell(pid=pid)
        os._exit(3)
        """,
    )
    assert found == [3, False]


VERSIONED = """
        version = open("version").read()
        while version == "new" and not os.path.exists("ready"):
            time.sleep(0.01)
        """
"""A server has what was installed when it was started, and takes its time for what is newer."""
TELLS = "tell(version=version)"
RENEWING = """
        def install(version):
            with open("version", "w") as file:
                file.write(version)

        async def of_fork():
            await (await fork("gateway")).wait()
            return heard()["version"]

        install("old")
        assert await of_fork() == "old"
        install("new")
        """


def test_while_it_is_renewed_forks_are_the_formers_and_then_the_successors(tmp_path: Any) -> None:
    found = said(
        tmp_path,
        RENEWING
        + """
        renewing = asyncio.create_task(server.renew())
        while len(made) < 2:
            await asyncio.sleep(0.01)
        await made[1].started.wait()
        meanwhile = await of_fork()
        open("ready", "w").close()
        renewed = await renewing
        former = psutil.pid_exists(own.pid)
        print(json.dumps([meanwhile, renewed, await of_fork(), former, server.child is made[1]]))
        """,
        TELLS,
        VERSIONED,
    )
    assert found == ["old", True, "new", False, True]


def test_a_successor_that_is_not_ready_in_time_is_ended(tmp_path: Any) -> None:
    found = said(
        tmp_path,
        RENEWING
        + """
        fork_server.PATIENCE = 0.5
        renewed = await server.renew()
        print(json.dumps([renewed, await of_fork(), psutil.pid_exists(made[1].pid)]))
        """,
        TELLS,
        VERSIONED,
    )
    assert found == [False, "old", False]


def test_it_takes_the_place_of_one_that_does_not_fork_in_any_case(tmp_path: Any) -> None:
    """It comes later, and has what was installed."""
    found = said(
        tmp_path,
        RENEWING
        + """
        own.pause = 600.0
        own.kill()
        await own.ended.wait()
        fork_server.PATIENCE = 0.5
        renewed = await server.renew()
        open("ready", "w").close()
        print(json.dumps([renewed, await of_fork()]))
        """,
        TELLS,
        VERSIONED,
    )
    assert found == [True, "new"]


def test_who_waits_for_the_former_gets_a_fork_of_the_successor(tmp_path: Any) -> None:
    found = said(
        tmp_path,
        RENEWING
        + """
        fork_server.LOOK_AT_SERVER = fork_server.SOON = 600.0
        server._patience = 600.0
        os.kill(own.pid, signal.SIGSTOP)
        asking = asyncio.create_task(of_fork())
        await asyncio.sleep(0)
        open("ready", "w").close()
        print(json.dumps([await server.renew(), await asking]))
        """,
        TELLS,
        VERSIONED,
    )
    assert found == [True, "new"]


def test_a_renewal_that_is_given_up_leaves_the_former(tmp_path: Any) -> None:
    found = said(
        tmp_path,
        RENEWING
        + """
        renewing = asyncio.create_task(server.renew())
        while len(made) < 2:
            await asyncio.sleep(0.01)
        await made[1].started.wait()
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        print(json.dumps([await of_fork(), psutil.pid_exists(made[1].pid)]))
        """,
        TELLS,
        VERSIONED,
    )
    assert found == ["old", False]


def test_what_is_to_be_read_is_known_to_later_forks(tmp_path: Any) -> None:
    """Also of a server that was started after that."""
    found = said(
        tmp_path,
        """
        async def of_fork():
            await (await fork("gateway")).wait()
            return heard()["known"]

        found = []
        for folder in ("one", "two", "one"):
            server.read(Path(folder))
            found.append(await of_fork())
        own.kill()
        await own.ended.wait()
        print(json.dumps([*found, await of_fork(), await server.renew(), await of_fork()]))
        """,
        "tell(known=known[-1])",
        "Path('listed').exists() and read()",
    )
    both = ["one", "two"]
    assert found == [["one"], both, both, both, True, both]


def test_what_a_gateway_leaves_behind_is_waited_for_at_once(tmp_path: Any) -> None:
    """What is in its group is nobody else's, so it isn't looked at twice, and needn't be first."""
    found = said(
        tmp_path,
        """
        fork_server.LOOK, fork_server.LOOKS = 0.01, 10**9
        process = await fork("gateway")
        orphan = heard()["pid"]
        code = await process.wait()
        while psutil.pid_exists(orphan):
            await asyncio.sleep(0.01)
        print(json.dumps(code))
        """,
        """
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            while os.getppid() == parent:
                time.sleep(0.001)
            os._exit(0)
        tell(pid=pid)
        os._exit(3)
        """,
    )
    assert found == 3


def test_what_others_wait_for_is_left_to_them(tmp_path: Any) -> None:
    """Another thread may have started a process, in whatever group, and be slow to ask."""
    found = said(
        tmp_path,
        """
        codes = []
        for group in (0, None):
            process = subprocess.Popen(["sh", "-c", "exit 7"], process_group=group)
            while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            codes.append(process.wait())
        print(json.dumps(codes))
        """,
    )
    assert found == [7, 7]


@pytest.mark.timeout(60)
async def test_a_server_that_cannot_start_is_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also before the system was ever ready: it isn't the model that is too large."""
    starts = 0

    async def start(*_: object, **__: object) -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1
        return await asyncio.create_subprocess_exec("sh", "-c", "kill -KILL $$")

    monkeypatch.setattr(child_module, "start", start)
    monkeypatch.setattr(fork_server, "RESTARTS", RestartSettings(max_delay=0.01))
    spec = ChildSpec("fork-server", ("fork-server",))
    child = fork_server.kept_child(spec, tmp_path / "failure", ForkedAhead())
    running = asyncio.create_task(child.run())
    while starts <= 2 * RestartSettings().max_startup_deaths:
        await asyncio.sleep(0.01)
    await child.stop()
    assert await running is None
    assert "smaller model" not in said_by(caplog)
