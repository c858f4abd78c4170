"""A fork server that is renewed forks all the while, at last what was installed anew."""

from __future__ import annotations

from typing import Any

from tests.shared.supervisor.fork_server_programs import said

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
