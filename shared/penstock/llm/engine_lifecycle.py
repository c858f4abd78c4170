"""What AsyncLLM has of its engine core: how it starts and ends, and what is known of its model."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from penstock.client import EngineClient, ModelText
from penstock.config.settings import EngineConfig, ServeConfig
from penstock.errors import EngineUnavailable, InvalidRequest, PenstockError, StartupError
from penstock.llm.given_weights import GivenWeights
from penstock.llm.keywords import engine_config
from penstock.llm.model_tokenizer import ModelTokenizer
from penstock.media.desk import MediaDesk
from penstock.net.runtime_dir import RuntimeDir
from penstock.protocol.to_frontend import Status, Welcome
from penstock.request.generation_config import sampling_defaults
from penstock.request.sampling_params import SamplingParams
from penstock.text.read_ahead import ReadMeanwhile

START_TIMEOUT = 600.0
"""Seconds that an engine gets to load its model."""


class EngineLifecycle:
    """Starts an engine core or connects to one, and stops what it started. See AsyncLLM."""

    def __init__(
        self,
        model: str | None = None,
        *,
        engine_endpoint: str | None = None,
        engine_log: IO[Any] | None = None,
        **settings: Any,
    ) -> None:
        if model is not None:
            settings["model"] = model
        if engine_endpoint is not None and settings:
            raise InvalidRequest(
                f"engine_endpoint was given with {', '.join(sorted(settings))}; "
                "a running engine core has its own settings"
            )
        self._config: EngineConfig = engine_config(settings)
        self._endpoint = engine_endpoint
        self._engine_log = engine_log
        self._starting = asyncio.Lock()
        self._engine: LaunchedEngine | None = None
        self._client: EngineClient | None = None
        self._desk = MediaDesk(self._config.media)
        self._given = GivenWeights(self._config.model.model, self._config.model.cache_dir)

    @classmethod
    def from_engine_args(cls, engine_args: Any, **unused: Any) -> Self:
        """From an AsyncEngineArgs. vLLM's other parameters have no effect here."""
        keywords = {name: getattr(engine_args, name) for name in engine_args.__dataclass_fields__}
        return cls(**keywords)

    async def start(self) -> None:
        """Starts the engine if necessary, and waits until it serves. Raises StartupError."""
        async with self._starting:
            if self._client is not None:
                return
            try:
                await self._start()
            except PenstockError as error:
                raise error.with_traceback(None) from None  # Its message says it all.

    async def _start(self) -> None:
        endpoint = self._endpoint
        self._desk = MediaDesk(self._config.media)  # One that was closed stays so.
        if endpoint is None:
            self._engine = LaunchedEngine(self._config, log=self._engine_log)
            endpoint = self._engine.endpoint
            reading = ReadMeanwhile(self._prepared_folder)
            try:
                await asyncio.to_thread(self._engine.wait_ready, START_TIMEOUT)
                await asyncio.to_thread(reading.wait)
                await self._connect(endpoint)
            except BaseException:
                self._stop_engine()
                raise
            finally:
                reading.forget()
            return
        await self._connect(endpoint)

    def _prepared_folder(self) -> Path | None:
        # Imported here: in a thread, while the engine starts.
        from penstock.prepare import find_prepared
        from penstock.prepare.overrides import overrides_of

        model = self._config.model
        return find_prepared(
            model.model,
            model.cache_dir,
            model.model_impl,
            model.language_model_only,
            model.mmproj,
            overrides_of(model),
        )

    async def _connect(self, endpoint: str) -> None:
        client = EngineClient(endpoint, name="library", settings=self._config.transport)
        await client.start()
        self._client = client
        try:
            await client.wait_connected(30.0)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Aborts what runs and stops the engine that `start` started. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        self._desk.close()
        self._stop_engine()
        self._given.close()

    def shutdown(self) -> None:
        """Aborts and stops as `close` does, without waiting, in the event loop or after its end.
        Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close_now()
        self._desk.close()
        self._stop_engine()
        self._given.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def text(self) -> ModelText:
        """Tokenizer and chat template of the model."""
        text = self._started().text
        if text is None:
            raise EngineUnavailable("the engine has not said yet which model it serves")
        return text

    @property
    def welcome(self) -> Welcome:
        """Returns what the engine core reported of itself and its model."""
        welcome = self._started().welcome
        if welcome is None:
            raise EngineUnavailable("the engine has not said yet which model it serves")
        return welcome

    @property
    def status(self) -> Status | None:
        """The engine core's latest report on its state."""
        return self._started().status

    @property
    def client(self) -> EngineClient:
        """The client of its engine core; only after start."""
        return self._started()

    @property
    def window(self) -> int:
        """Requests worth having in flight at once: enough to keep every step full."""
        limits = self.welcome.limits
        return min(limits.max_waiting_requests, 2 * limits.max_num_seqs)

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer (see get_tokenizer); only after start."""
        return ModelTokenizer(self.text, self.welcome.generation, self.welcome.model)

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The model's own generation defaults; only after start."""
        return SamplingParams(**sampling_defaults(self.welcome.generation))

    async def get_tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, under transformers' method names."""
        await self.start()
        return self.tokenizer

    async def get_default_sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters that are used if none are given: the model's own
        generation defaults."""
        await self.start()
        return self.default_sampling_params

    def _started(self) -> EngineClient:
        if self._client is None:
            raise EngineUnavailable("not started: use `async with AsyncLLM(...)` or start() first")
        return self._client

    def _stop_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()


STOP_GRACE = 10.0
"""Seconds that the supervisor gets to stop its children before it is killed."""

LOG_FILE = "engine.log"
TAIL = 4000
"""Bytes."""


class _Report(msgspec.Struct):
    ready: bool = False
    error: str | None = None


_made: weakref.WeakSet[LaunchedEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in _made:
        engine.forget()


os.register_at_fork(after_in_child=_after_fork)


class LaunchedEngine:
    """Runs `penstock serve --no-http` as a child of this process.

    The child exits when this process does, however it ends. So it must be started from a thread
    that lives as long as the engine is needed.  endpoint: where its engine core accepts front ends.
    log: a file for its processes' logs; default: a temporary one, whose end is shown if it exits
    without giving a reason.
    """

    def __init__(self, config: EngineConfig, *, log: IO[Any] | None = None) -> None:
        self._pid = os.getpid()
        # What a killed program left of its own is swept by this, too.
        self._runtime = RuntimeDir.create()
        self.endpoint = self._runtime.endpoint("engine")
        settings = msgspec.json.encode(ServeConfig(engine=config))
        try:
            config_file = self._runtime.write("config.json", settings)
        except StartupError:
            self._runtime.remove()
            raise
        self._log = self._runtime.path / LOG_FILE if log is None else None
        reading, writing = os.pipe()
        self._report_fd = reading
        command = [sys.executable, "-m", "penstock", "serve", "--no-http"]
        command += ["--frontend-endpoint", self.endpoint, "--config", str(config_file)]
        command += ["--report-fd", str(writing)]
        try:
            with nullcontext(log) if self._log is None else self._log.open("wb") as stderr:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stderr=stderr,
                    pass_fds=[writing],
                    start_new_session=True,
                )
        except OSError as error:
            os.close(reading)
            self._runtime.remove()
            raise StartupError(f"the engine can't be started: {error}") from error
        finally:
            os.close(writing)
        _made.add(self)

    def forget(self) -> None:
        """Closes the copy of the pipe in a child of os.fork(), which would keep the engine running
        after the end of the process that owns it."""
        if self._report_fd >= 0:
            os.close(self._report_fd)
            self._report_fd = -1

    def wait_ready(self, timeout: float) -> None:
        """Blocks until the model is served. Raises StartupError with the child's reason."""
        deadline = time.monotonic() + timeout
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._report_fd], [], [], left)[0]:
                raise StartupError(f"the engine was not ready within {timeout:g} s")
            chunk = os.read(self._report_fd, 65_536)
            if not chunk:
                raise StartupError(f"the engine left before it was ready{self._last_words()}")
            line += chunk
        report = msgspec.json.decode(line, type=_Report)
        if not report.ready:
            raise StartupError(report.error or "the engine could not start")

    def _last_words(self) -> str:
        """Returns the end of its log, unless the caller has the log already."""
        if self._log is None:
            return "; see its log"
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - TAIL))
            return "; the end of its log:\n" + file.read().decode(errors="replace").rstrip()

    def stop(self) -> None:
        """Stops the child and all processes below it. Idempotent; does nothing in a child of
        os.fork(), to which the engine doesn't belong."""
        if os.getpid() != self._pid:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._report_fd >= 0:
            os.close(self._report_fd)
            self._report_fd = -1
        self._runtime.remove()
