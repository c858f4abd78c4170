"""In place of a GPU: launches that take a launch's time and compute nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from penstock.model.config import ModelConfig
from penstock_kernels.triton.rowwise.rms_norm import rms_norm
from penstock_worker.device.queue import HostQueue
from penstock_worker.forward.captures import EagerRecording, Work
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import shard_of
from penstock_worker.sampler.transfers import HostTransfers

KERNEL_SECONDS, REPLAY_SECONDS, OPERATION_SECONDS = 20e-6, 60e-6, 5e-6
"""What calls take on the host: of a Triton kernel, of a captured graph, of a torch operation."""
_QUIET = {"empty", "empty_like", "empty_strided", "new_empty"}
"""Operations that launch nothing, beside views.  What is made on the host is counted too: here it
looks like the device's (a zeros and an arange of the layout, in 96a5a93)."""
HIDDEN = 64


@dataclass
class Launches:
    """What was launched while `counted` was open; counting is slow.  In place of Captures, it gives
    graphs whose replay takes a replay's time."""

    kernels: dict[str, int] = field(default_factory=dict)  # how often each of Triton's
    operations: dict[str, int] = field(default_factory=dict)  # how often each of torch's
    replays: int = 0  # of graphs
    _counting: bool = False

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Triton's launches come here, and the sampler's copies to the device, which a CPU doesn't
        make.  Every token chosen is 1."""
        send = HostTransfers.send

        def launch(kernel: Any, *arguments: Any, **options: Any) -> None:
            self._add(self.kernels, kernel.__name__)
            until = time.perf_counter() + KERNEL_SECONDS
            names = kernel.arg_names[: len(arguments)]
            if "tokens" in names:
                arguments[names.index("tokens")].numpy().fill(1)
            _spin(until)

        def counted_send(transfers: HostTransfers, arrays: Sequence[np.ndarray]) -> list[Tensor]:
            self.operation("copy to the device")
            return send(transfers, arrays)

        with (
            mock.patch.object(JITFunction, "run", launch),
            mock.patch.object(HostTransfers, "send", counted_send),
        ):
            yield

    def operation(self, name: str) -> None:
        """A torch operation that isn't computed."""
        self._add(self.operations, name)
        _spin(time.perf_counter() + OPERATION_SECONDS)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts from zero."""
        self.kernels, self.operations, self.replays = {}, {}, 0
        self._counting = True
        try:
            with _Operations(self):
                yield
        finally:
            self._counting = False

    def capture(self, work: Work) -> EagerRecording:
        return EagerRecording(self.replay)

    def renew(self) -> None:
        """Recordings have nothing in common."""

    def replay(self) -> None:
        self.replays += self._counting
        _spin(time.perf_counter() + REPLAY_SECONDS)

    def _add(self, counts: dict[str, int], name: str) -> None:
        if self._counting:
            counts[name] = counts.get(name, 0) + 1


class _Operations(TorchDispatchMode):
    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self._launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and name not in _QUIET:
            self._launches._add(self._launches.operations, name)
        return func(*args, **(kwargs or {}))


def _spin(until: float) -> None:
    while time.perf_counter() < until:
        pass


class StandInModel:
    """What of a DecoderModel is called; the logits are whatever lies in memory."""

    def __init__(self, config: ModelConfig, rows: int, launches: Launches) -> None:
        self.config = config
        self.shard = shard_of(config, RankPlace())
        self.layers = [None] * config.num_layers
        self._launches = launches
        self._norm = torch.ones(HIDDEN)
        self._out = torch.empty(rows, config.vocab_size, dtype=torch.float32)

    def receive(self, rows: int) -> None:
        """There is no stage before."""

    def hidden(self, tokens: Tensor, *rest: object, **more: object) -> Tensor:
        return torch.zeros(len(tokens), HIDDEN)

    through_layers = hidden

    def logits(self, hidden: Tensor) -> Tensor:
        rms_norm(hidden, self._norm, 1e-6)
        for name in ("head", "to float32"):
            self._launches.operation(name)
        return self._out[: len(hidden)]


class StandInQueue(HostQueue):
    """Whose work is done when somebody waits for it."""

    def __init__(self) -> None:
        self._marks = 0
        self.passed = 0

    def mark(self) -> Any:
        self._marks += 1
        return StandInMark(self, self._marks)


@dataclass(frozen=True)
class StandInMark:
    queue: StandInQueue
    number: int

    def done(self) -> bool:
        return self.queue.passed >= self.number

    def wait(self) -> None:
        self.queue.passed = max(self.queue.passed, self.number)

    def seconds_since(self, earlier: StandInMark) -> float:
        return 0.001
