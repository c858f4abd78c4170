"""Processes that are forked ahead are what executed ones would be, and none stays that isn't
needed. Each test runs in a program of its own: one that forks has no threads."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import psutil

from testing.serving import wait_until

PROGRAM = """
import asyncio, json, os, signal, sys, threading, time
from penstock.supervisor.ahead import ForkedAhead

class Role:
    def imports(self, role):
        if role == "broken":
            os._exit(3)
        self.role = role

    def run(self, words):
        {child}
        os._exit(0)

def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False

async def main(ahead):
    {parent}

if __name__ == "__main__":
    {before}
    ahead = ForkedAhead()
    ahead.fork({roles}, Role())
    asyncio.run(main(ahead))
"""


def said(
    parent: str, child: str = "pass", roles: tuple[str, ...] = ("worker",), before: str = "pass"
) -> Any:
    """What the parent has printed, as JSON, once it has ended. before: it forks."""
    program = PROGRAM.format(
        parent=textwrap.indent(textwrap.dedent(parent), " " * 4).strip(),
        child=textwrap.indent(textwrap.dedent(child), " " * 8).strip(),
        roles=roles,
        before=textwrap.indent(textwrap.dedent(before), " " * 4).strip(),
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        input="nobody reads this",
    )
    return json.loads(done.stdout)


def test_it_gets_its_words_environment_and_files_and_nothing_else() -> None:
    found = said(
        """
        reading, writing = os.pipe()
        mark = os.open(os.devnull, os.O_RDONLY)
        process = ahead.take(["worker", "--rank", "1"], [writing], {"PLACE": "there"})
        os.close(writing)
        code = await process.wait()
        with os.fdopen(reading) as pipe:
            told = json.load(pipe)
        print(json.dumps([told, writing, process.pid, os.getpid(), code, process.returncode]))
        """,
        """
        open_files = os.listdir("/proc/self/fd")
        open_files = sorted(int(n) for n in open_files if os.path.exists(f"/proc/self/fd/{n}"))
        told = {
            "role": self.role,
            "words": words,
            "place": os.environ["PLACE"],
            "stdin": sys.stdin.read(),
            "pid": os.getpid(),
            "parent": os.getppid(),
            "group": os.getpgid(0),
            "files": open_files,
            "stdout": os.path.samestat(os.fstat(1), os.fstat(2)),
            "title": open("/proc/self/cmdline").read().rstrip("\\0 "),
        }
        os.write(open_files[3], json.dumps(told).encode())
        os._exit(5)
        """,
    )
    told, writing, pid, parent, *codes = found
    assert told == {
        "role": "worker",
        "words": ["worker", "--rank", "1"],
        "place": "there",
        "stdin": "",
        "pid": pid,
        "parent": parent,
        "group": pid,
        "files": [0, 1, 2, writing],
        "stdout": True,
        "title": "penstock: worker",
    }
    assert codes == [5, 5]


def test_a_signal_ends_it_and_is_told() -> None:
    code, again = said(
        """
        process = ahead.take(["worker"], [], {})
        process.send_signal(signal.SIGTERM)
        code = await process.wait()
        process.send_signal(signal.SIGTERM)
        print(json.dumps([code, await process.wait()]))
        """,
        "time.sleep(60)",
    )
    assert (code, again) == (-15, -15)


def test_each_is_taken_once_and_by_its_own_role() -> None:
    taken = said(
        """
        words = ["engine"], ["worker"], ["worker"], ["worker"]
        taken = [ahead.take(each, [], {}) for each in words]
        print(json.dumps([each is not None for each in taken]))
        """,
        roles=("worker", "gateway", "worker"),
    )
    assert taken == [False, True, True, False]


def test_one_that_has_died_is_not_taken() -> None:
    assert said(
        """
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        print(json.dumps(ahead.take(["broken"], [], {}) is None))
        """,
        roles=("broken",),
    )


def test_it_ends_where_nobody_keeps_its_code_and_nothing_is_printed_to() -> None:
    """As under a parent that ignores SIGCHLD and closes stdout."""
    assert (
        said(
            """
        process = ahead.take(["worker"], [], {})
        code = await process.wait()
        os.write(told, json.dumps(code).encode())
        """,
            before="""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        told, sys.stdout = os.dup(1), None
        """,
        )
        == 255
    )


def test_few_descriptors_are_enough() -> None:
    assert said(
        """
        process = ahead.take(["worker"], [0, 1], {})
        print(json.dumps(await process.wait() == 0))
        """,
        before="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    )


def test_those_that_are_left_end_with_the_supervisors_wish() -> None:
    before, after = said(
        """
        pids = [each.pid for some in ahead._waiting.values() for each, _ in some]
        before = [gone(pid) for pid in pids]
        ahead.close()
        print(json.dumps([before, [gone(pid) for pid in pids]]))
        """,
        roles=("worker", "engine"),
    )
    assert (before, after) == ([False, False], [True, True])


def test_those_that_are_left_end_with_the_supervisor() -> None:
    pids = said(
        """
        pids = [each.pid for some in ahead._waiting.values() for each, _ in some]
        print(json.dumps(pids))
        """,
        roles=("worker", "engine"),
    )
    wait_until(lambda: not any(map(_runs, pids)), message=lambda: str(pids))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_none_is_forked_where_another_thread_could_hold_a_lock() -> None:
    assert said(
        """
        resting = threading.Event()
        thread = threading.Thread(target=resting.wait)
        thread.start()
        more = ForkedAhead()
        more.fork(("worker",), Role())
        resting.set()
        print(json.dumps(more.take(["worker"], [], {}) is None))
        """,
        roles=(),
    )
