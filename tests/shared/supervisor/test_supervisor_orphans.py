"""What gateways leave behind is waited for, and nothing that somebody else waits for."""

from __future__ import annotations

from typing import Any

from tests.shared.supervisor.fork_server_programs import said


def test_orphans_are_waited_for(tmp_path: Any) -> None:
    """The helpers of a gateway that is killed are such: the supervisor never knew them."""
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
            await asyncio.sleep(0.1)  # Long enough for the zombie to be taken from them.
            codes.append(process.wait())
        print(json.dumps(codes))
        """,
    )
    assert found == [7, 7]
