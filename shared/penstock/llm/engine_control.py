"""What AsyncLLM asks of its engine core beside answers: pauses, sleep, other weights, calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from penstock.call_values import decode_value
from penstock.client.replacing import ChangeMode
from penstock.client.sleeping import sleep_level, wake_tags
from penstock.errors import InvalidRequest, RequestFailed
from penstock.llm.engine_lifecycle import EngineLifecycle


class EngineControl(EngineLifecycle):
    """See AsyncLLM."""

    async def reset_prefix_cache(self) -> bool:
        """From now on nothing is shared with earlier requests; as in vLLM, always True."""
        await self.start()
        self._started().reset_prefix_cache()
        return True

    async def pause_generation(self, *, mode: Literal["abort", "keep"] = "abort") -> None:
        """Stops computing, as in vLLM; returns once no step runs any more. mode: abort ends open
        requests as they are; keep lets them go on where they were. Raises InvalidRequest."""
        if mode not in ("abort", "keep"):
            raise InvalidRequest(f"mode is {mode!r}; allowed: abort, keep", param="mode")
        await self.start()
        await self._started().set_paused(True, abort=mode == "abort")

    async def resume_generation(self) -> None:
        """Goes on computing."""
        await self.start()
        await self._started().set_paused(False)

    async def is_paused(self) -> bool:
        """Whether nothing is computed until resume_generation."""
        await self.start()
        return self._started().paused

    async def sleep(self, level: int = 1, mode: Literal["abort", "keep"] = "abort") -> None:
        """Gives the model's memory back, as in vLLM; returns once it is free. level: 1 for the KV
        cache, and a device's weights; 2 for all weights, too. mode: abort ends open requests as
        they are; keep lets them go on where they were. Requests that come meanwhile wait. Raises
        InvalidRequest."""
        if mode not in ("abort", "keep"):
            raise InvalidRequest(f"mode is {mode!r}; allowed: abort, keep", param="mode")
        depth = sleep_level(level)
        await self.start()
        await self._started().put_to_sleep(depth, abort=mode == "abort")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads the model again, and goes on; returns then. tags: "weights" or "kv_cache": what is
        wanted again. It wakes once both were named. Raises InvalidRequest."""
        wanted = wake_tags(tags)
        await self.start()
        await self._started().wake_up(wanted)

    async def is_sleeping(self) -> bool:
        """Whether it computes nothing until wake_up."""
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
        """Replaces the model's weights by those of a folder or .gguf file, or of a model on the
        hub; returns once they are loaded. Architecture and tokenizer must be the same; the chat
        template and sampling defaults stay as they are.

        tensors, in place of a model: torch's or NumPy's, all that its checkpoint has, by the names
        there; of a model whose checkpoint is in the hub's format, and that this object has started.
        They go through the machine's shared memory, and the caller's may be changed afterwards.

        No answer comes of both: mode wait has requests that have begun end first, within so many
        seconds (timeout: 60; at most 3600), and holds those that come meanwhile; abort ends all
        that are open as they are. KV of the former weights is never used again.

        Raises InvalidRequest for what are no other weights of this model, DeadlineExceeded,
        EngineUnavailable, and RequestFailed where they can't be loaded: then the former ones stay.
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
        """Calls a method of a worker extension on all ranks, between two steps; as in vLLM, but a
        method is named, and never sent. Returns what each rank does, in their order.

        timeout: seconds (60; at most 3600) for which it may wait until it begins, and then again
        for which it may run; a worker in which it runs longer is replaced, and streams go on.
        args, kwargs: plain values and arrays; arrays come back as NumPy's.

        Raises InvalidRequest for a method or arguments that there is no way to call with,
        RequestFailed where it raised, DeadlineExceeded where it could not begin, and
        EngineUnavailable where a worker ended meanwhile.
        """
        await self.start()
        results = await self._started().call_workers(method, args, kwargs, timeout)
        return [decode_value(each) for each in results]
