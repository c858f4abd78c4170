"""Forks of the server are what executed processes would be, their parent is the supervisor, and
nothing that happens to the server costs more than time. Each test runs in programs of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.supervisor import child as child_module
from penstock.supervisor import fork_server
from penstock.supervisor.ahead import ForkedAhead
from penstock.supervisor.child import ChildSpec
from penstock.supervisor.restarts import RestartSettings
from tests.said import said as said_by
from tests.shared.supervisor.fork_server_programs import said


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
        fork_server.SOON = PATIENCE
        os.kill(own.pid, signal.SIGSTOP)
        """
    assert said(tmp_path, stopped + IN_TIME.lstrip()) == [None, True]


def test_nor_is_one_that_does_so_before_its_first_fork(tmp_path: Any) -> None:
    before = "os.kill(os.getpid(), signal.SIGSTOP)"
    assert said(tmp_path, IN_TIME, before=before) == [None, True]


def test_one_that_is_to_be_started_again_later_is_started_for_who_wants_a_fork(
    tmp_path: Any,
) -> None:
    assert (
        said(
            tmp_path,
            """
            own.pause = 600.0
            await own.started.wait()
            own.kill()
            await own.ended.wait()
            print(json.dumps(await (await fork("gateway")).wait()))
            """,
            "os._exit(4)",
        )
        == 4
    )


def test_one_that_dies_time_and_again_is_not_waited_for_long(tmp_path: Any) -> None:
    """Each of its lives begins the wait anew, but not for ever."""
    before = "time.sleep(0.6); os._exit(1)"  # It lives for longer than LOOK_AT_SERVER.
    assert said(tmp_path, IN_TIME, before=before, starts=10**9) == [None, True]


def test_what_is_there_again_has_as_long_for_its_imports_as_the_first(tmp_path: Any) -> None:
    """Seconds that are enough for a fork may be too few for that."""
    assert (
        said(
            tmp_path,
            """
            await (await fork("gateway")).wait()
            fork_server.SOON = 0.1
            own.kill()
            await own.ended.wait()
            print(json.dumps(await (await fork("gateway")).wait()))
            """,
            "os._exit(4)",
            "os.path.exists('again') and time.sleep(1.2); open('again', 'w').close()",
        )
        == 4
    )


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
