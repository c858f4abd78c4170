"""Programs that run a fork server, for tests of it: each is a supervisor, its server, and forks."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

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
        self.hurried = asyncio.Event()
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
            self.hurried.clear()
            hurried = asyncio.create_task(self.hurried.wait())
            ends = [self.stopped, hurried]
            await asyncio.wait(ends, timeout=self.pause, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
        return "it was enough"

    def hurry(self):
        self.hurried.set()

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
