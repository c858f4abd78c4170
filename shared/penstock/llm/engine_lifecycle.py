"""What AsyncLLM has of its engine core: how it starts and ends, and what is known of its model."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import IO, Any, Self

from penstock.client import EngineClient, ModelText
from penstock.config.settings import EngineConfig
from penstock.errors import EngineUnavailable
from penstock.llm.given_weights import GivenWeights
from penstock.llm.keywords import engine_config
from penstock.llm.launched_engine import LaunchedEngine
from penstock.llm.model_tokenizer import ModelTokenizer
from penstock.media.desk import MediaDesk
from penstock.protocol.to_frontend import Status, Welcome
from penstock.request.generation_config import sampling_defaults
from penstock.request.sampling_params import SamplingParams

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
            raise ValueError(
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
            if self._client is None:
                await self._start()

    async def _start(self) -> None:
        endpoint = self._endpoint
        self._desk = MediaDesk(self._config.media)  # One that was closed stays so.
        if endpoint is None:
            self._engine = LaunchedEngine(self._config, log=self._engine_log)
            endpoint = self._engine.endpoint
            try:
                await asyncio.to_thread(self._engine.wait_ready, START_TIMEOUT)
            except BaseException:
                self._stop_engine()
                raise
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
        """What the engine core said of itself and its model."""
        welcome = self._started().welcome
        if welcome is None:
            raise EngineUnavailable("the engine has not said yet which model it serves")
        return welcome

    @property
    def status(self) -> Status | None:
        """The engine core's latest report on its state."""
        return self._started().status

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
        """What is used if no SamplingParams are given: the model's own generation defaults."""
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
