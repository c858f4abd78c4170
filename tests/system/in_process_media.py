"""A system in one process whose front end has the bytes of media, with deaths of either process."""

from __future__ import annotations

import hashlib
import queue
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.media.prepared import write
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Pooling, TokenSampling
from penstock.protocol.from_frontend import MediaFile, OpenSequence, Stopping, Submit
from penstock.protocol.from_worker import FromWorker, MediaFailed, MediaReady, WorkerHello
from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock.protocol.to_frontend import NeedMedia, Outputs, Pooled, Rejected
from penstock.protocol.to_worker import Plan, Setup, ToWorker
from penstock.protocol.worker_resources import DropMedia, LoadMedia
from testing.in_process import FRONT, Heard, Numerics, System, Way, recode


@dataclass(frozen=True)
class Asked:
    """A request. media: None for text alone; items: files of the prompt's items, in the order of
    its media's."""

    prompt: list[int]
    wanted: int
    sampling: TokenSampling
    media: Media | None = None
    items: tuple[Path, ...] = ()
    pooling: Pooling | None = None


@dataclass
class Deaths:
    """worker, core: before which plan each dies, counted from the start; 0: not at all. A step that
    was computed is lost with either."""

    worker: int = 0
    core: int = 0


@dataclass
class MediaSystem:
    """Runs requests to their ends."""

    folder: Path
    numerics: Numerics
    way: Way
    deaths: Deaths = field(default_factory=Deaths)
    asked: dict[int, Asked] = field(default_factory=dict)
    heard: dict[int, Heard] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
    plans: int = 0
    encoded: int = 0
    """Items, as often as they were."""
    reused: int = 0

    def run(self, asked: dict[int, Asked]) -> None:
        self.asked |= asked
        self.heard |= {number: Heard() for number in asked}
        self._begin()
        while not all(heard.finished for heard in self.heard.values()):
            if self.system.dead:
                self._begin()
            for message, _ in self.system.step():
                self._hear(message)

    def _begin(self) -> None:
        """A new engine core, with a new worker, is given what is open."""
        self.system = _Parts(self.folder, self.numerics, self.way, self)
        for number, heard in self.heard.items():
            if not heard.finished:
                self._submit(number, heard)

    def _submit(self, number: int, heard: Heard) -> None:
        asked = self.asked[number]
        submit = Submit(
            number,
            str(number),
            asked.prompt,
            [OpenSequence(0, list(heard.tokens))],
            asked.sampling,
            Stopping(max_tokens=asked.wanted, ignore_eos=True),
            resumed=self.plans > 0,
            media=asked.media,
            pooling=asked.pooling,
        )
        self.system.core.frontend_received(FRONT, submit, 0.0)

    def _hear(self, message: Any) -> None:
        match message:
            case NeedMedia():
                path = str(self.asked[message.request].items[message.item])
                answer = MediaFile(message.request, message.item, path)
                self.system.core.frontend_received(FRONT, answer, 0.0)
            case Rejected():
                raise AssertionError(message)
            case Pooled():
                self.vectors[message.request] = message.vectors.data
                self.heard[message.request].finished = True
            case Outputs():
                for output in message.outputs:
                    heard = self.heard[output.request]
                    heard.tokens += output.tokens
                    heard.logprobs += output.logprobs or []
                    heard.finished = output.finish is not None
                    assert output.finish in (None, "length"), output


class _Parts(System):
    """An engine core and its workers, one after another."""

    def __init__(self, folder: Path, numerics: Numerics, way: Way, of: MediaSystem) -> None:
        super().__init__(folder, numerics, way)
        self.of = of
        self.dead = False
        self._worker = b"worker"
        self._is_gone = False

    def _work(self, message: ToWorker) -> None:
        self._is_gone = self._is_gone and not isinstance(message, Setup)
        if self.dead or self._is_gone:
            return  # It was sent to who is gone.
        if isinstance(message, (LoadMedia, DropMedia)):
            self._receive(message)
            return
        if isinstance(message, Plan):
            self.of.plans += 1
            self.of.encoded += len(message.encode)
            starts = {work.slot: work.start for work in message.work}
            self.of.reused += sum(starts.get(new.slot, 0) for new in message.admitted)
            assert self.loaded is not None
            if self.of.plans == self.of.deaths.core:
                self.loaded.runner.execute(message)
                self.dead = True
                return
            if self.of.plans == self.of.deaths.worker:
                self.loaded.runner.execute(message)
                self._next_worker()
                return
        super()._work(message)

    def _receive(self, message: LoadMedia | DropMedia) -> None:
        assert self.loaded is not None
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.loaded.runner.features.hear(message, (), answers.put)
        if isinstance(message, LoadMedia):
            answer: MediaReady | MediaFailed = answers.get(timeout=60)
            assert isinstance(answer, MediaReady), answer
            self.core.worker_received(self._worker, recode(answer, FromWorker), 0.0)

    def _next_worker(self) -> None:
        self._is_gone = True
        self.core.worker_ended(self._worker, "killed", 0.0)
        self._worker = b"next worker"
        hello = WorkerHello(list(PROTOCOL_VERSIONS), 0, 0)
        self.core.worker_opened(self._worker, hello, 0.0)

    def _answer(self, answer: Any) -> None:
        self.core.worker_received(self._worker, recode(answer, FromWorker), 0.0)


def item_of(
    path: Path,
    kind: Any,
    tensor: str,
    values: np.ndarray,
    rows: int,
    grid: tuple[int, ...] = (),
) -> MediaItem:
    """Writes a prepared item to the path."""
    data = write({tensor: values})
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    name = hashlib.sha256(path.name.encode()).hexdigest()
    return MediaItem(name, kind, rows, len(data), digest, grid)


def shown(*pairs: tuple[MediaItem, int]) -> Media:
    """pairs: (item, where its placeholders begin)."""
    items = list(dict.fromkeys(item for item, _ in pairs))
    spans = tuple(MediaSpan(items.index(item), at, item.rows) for item, at in pairs)
    return Media(tuple(items), spans)


def alone(system: MediaSystem, asked: dict[int, Asked]) -> dict[int, Heard]:
    """Each request by itself, in a system of its own like this one."""
    found: dict[int, Heard] = {}
    for number, each in asked.items():
        own = MediaSystem(system.folder, system.numerics, system.way, replace(system.deaths))
        own.run({number: each})
        found |= own.heard
        system.vectors |= own.vectors
        system.plans += own.plans
    return found
