"""AsyncLLM's control of its engine core: pauses, sleep, weight updates, calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from penstock.client.control import sleep_level, wake_tags
from penstock.client.replacing import ChangeMode
from penstock.errors import InvalidRequest, RequestFailed
from penstock.llm.engine_lifecycle import EngineLifecycle
from penstock.protocol.call_values import decode_value


class EngineControl(EngineLifecycle):
    """Pauses, sleep, other weights and calls of an AsyncLLM."""

    async def reset_prefix_cache(self) -> bool:
        """Later requests reuse nothing from earlier ones. Returns True, as in vLLM."""
        await self.start()
        self._started().reset_prefix_cache()
        return True

    async def pause_generation(self, *, mode: Literal["abort", "keep"] = "abort") -> None:
        """Stops computing, as in vLLM; returns once no step is running. mode: abort ends open
        requests with the tokens they have; keep lets them continue later where they were. Raises
        InvalidRequest."""
        if mode not in ("abort", "keep"):
            raise InvalidRequest(f"mode is {mode!r}; allowed: abort, keep", param="mode")
        await self.start()
        await self._started().set_paused(True, abort=mode == "abort")

    async def resume_generation(self) -> None:
        """Ends a pause."""
        await self.start()
        await self._started().set_paused(False)

    async def is_paused(self) -> bool:
        """Whether the engine is paused until resume_generation."""
        await self.start()
        return self._started().paused

    async def sleep(self, level: int = 1, mode: Literal["abort", "keep"] = "abort") -> None:
        """Frees the model's memory, as in vLLM; returns once it is free. level: 1 frees the KV
        cache and a device's weights, 2 all weights too. mode: abort ends open requests with the
        tokens they have; keep lets them continue later where they were. New requests wait. Raises
        InvalidRequest."""
        if mode not in ("abort", "keep"):
            raise InvalidRequest(f"mode is {mode!r}; allowed: abort, keep", param="mode")
        depth = sleep_level(level)
        await self.start()
        await self._started().put_to_sleep(depth, abort=mode == "abort")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads the model again; returns once it serves. tags: "weights" or "kv_cache"; the model
        wakes once both have been named. Raises InvalidRequest."""
        wanted = wake_tags(tags)
        await self.start()
        await self._started().wake_up(wanted)

    async def is_sleeping(self) -> bool:
        """Whether the model sleeps until wake_up."""
        await self.start()
        return self._started().sleeping

    async def update_weights(
        self,
        model: str | os.PathLike[str] | None = None,
        mode: ChangeMode = "wait",
        timeout: float | None = None,
        *,
        tensors: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
    ) -> None:
        """Replaces the model's weights with those of a folder, a .gguf file, or a model on the hub;
        returns once they are loaded. Architecture and tokenizer must be the same; the chat template
        and the sampling defaults don't change.

        tensors, instead of a model: torch tensors or NumPy arrays, all that the checkpoint has, by
        their names there. This needs a checkpoint in the hub's format, and an engine started by
        this object. They are passed through the machine's shared memory, and the caller may change
        its own afterwards.

        No answer mixes both sets of weights. With the mode wait, started requests finish first,
        within timeout seconds (60; at most 3600), and new ones wait; with abort, open requests end
        with the tokens they have. KV of the old weights is never used again.

        Raises InvalidRequest for anything but other weights of this model, DeadlineExceeded,
        EngineUnavailable, and RequestFailed if the weights can't be loaded: then the old ones stay.
        """
        if (model is None) == (tensors is None):
            raise InvalidRequest("weights come as a model or as tensors; give one of the two")
        await self.start()
        if tensors is not None:
            await self._take_tensors(tensors, mode, timeout)
            return
        client = self._started()
        await client.replace_weights(
            model or "", mode=mode, timeout=timeout, cache_dir=self._config.model.cache_dir
        )
        self._given.taken(newest=False, promised=client.sleeping)

    async def _take_tensors(
        self,
        tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
        mode: ChangeMode,
        timeout: float | None,
    ) -> None:
        if self._endpoint is not None:
            raise InvalidRequest(
                "tensors can be given to a model that this object has started; an engine core that"
                " runs elsewhere takes a folder",
                param="tensors",
            )
        given, client = self._given, self._started()
        folder = await asyncio.to_thread(given.write, tensors)
        try:
            await client.replace_weights(
                folder, mode=mode, timeout=timeout, cache_dir=given.cache_of(folder)
            )
        except (InvalidRequest, RequestFailed):
            given.refused()
            raise
        given.taken(newest=True, promised=client.sleeping)

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of a worker extension on all ranks, between two steps. Unlike in vLLM, the
        method is given by name; code is never sent. Returns each rank's result, in the order of
        ranks.

        timeout: seconds (60; at most 3600) that the call may wait to begin, and then may run; a
        worker in which it runs longer is replaced, and streams continue.  args, kwargs: plain
        values and arrays; arrays are returned as NumPy arrays.

        Raises InvalidRequest for an unknown method or unsuitable arguments, RequestFailed if it
        raised an exception, DeadlineExceeded if it could not begin in time, and EngineUnavailable
        if a worker ended during the call.
        """
        await self.start()
        results = await self._started().call_workers(method, args, kwargs, timeout)
        return [decode_value(each) for each in results]
