"""The processes: engine core, null worker and front end, which can be killed and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from loadtest.recovery.samples import Outcome, Sample
from penstock.prepare import prepare
from penstock.prepare.folder import MANIFEST, load_manifest

MODEL = "smollm2-135m"
PATIENCE = 600.0
LOOK = 0.02
GRACE = 30.0


def model_with_context(folder: Path, tokens: int) -> Path:
    """A prepared folder like that of MODEL, but with so long a context. Nothing can compute it, but
    a null worker doesn't."""
    prepared = prepare(MODEL)
    manifest = load_manifest(prepared)
    target = folder / "model"
    shutil.copytree(prepared, target)
    config = msgspec.structs.replace(manifest.config, max_position=tokens)
    longer = msgspec.structs.replace(manifest, config=config)
    (target / MANIFEST).write_bytes(msgspec.json.encode(longer))
    return target


class Part:
    """A process that is started again under the same command. log: of all its lives."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = command, log
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """At once, and gone when this returns."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.kill()


class Listening:
    """The front end's process, and what it has said so far. outcome: its last word."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.samples: list[Sample] = []
        self.outcome: Outcome | None = None
        self._decoder = msgspec.json.Decoder(Sample | Outcome)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listen(self) -> None:
        """Until it has no more to say."""
        if self._process.stdout is None:
            raise ValueError("the front end's words go elsewhere")
        async for line in self._process.stdout:
            said = self._decoder.decode(line)
            if isinstance(said, Sample):
                self.samples.append(said)
            else:
                self.outcome = said

    async def until(self, condition: Callable[[Sample], bool], seconds: float = PATIENCE) -> bool:
        """Waits for a sample, not heard yet, of which it holds. Whether one came in time, and
        before the end."""
        seen = len(self.samples)
        deadline = time.monotonic() + seconds
        while self.outcome is None and time.monotonic() < deadline:
            if any(condition(sample) for sample in self.samples[seen:]):
                return True
            seen = len(self.samples)
            await asyncio.sleep(LOOK)
        return False


@contextlib.asynccontextmanager
async def listening(
    endpoint: str, requests: int, prompt_tokens: int, tokens: int
) -> AsyncIterator[Listening]:
    """A front end with so many requests."""
    command = [sys.executable, "-m", "loadtest.recovery.front", endpoint]
    command += ["--requests", str(requests), "--prompt-tokens", str(prompt_tokens)]
    command += ["--tokens", str(tokens)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    front = Listening(process)
    hearing = asyncio.create_task(front.listen())
    try:
        yield front
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await hearing


def engine(folder: Path, model_dir: Path, flags: Sequence[str]) -> Part:
    command = [sys.executable, "-m", "penstock", "engine", "--model-dir", str(model_dir), *flags]
    command += ["--frontend-endpoint", front_end(folder), "--worker-endpoint", _back(folder)]
    return Part(command, folder / "engine.log")


def worker(folder: Path, model_dir: Path, step_seconds: float) -> Part:
    command = [sys.executable, "-m", "testing.null_worker", _back(folder)]
    command += ["--model-dir", str(model_dir), "--step-seconds", str(step_seconds)]
    return Part(command, folder / "worker.log")


def front_end(folder: Path) -> str:
    """Where front ends reach the engine core."""
    return f"ipc://{folder}/front"


def _back(folder: Path) -> str:
    return f"ipc://{folder}/back"
