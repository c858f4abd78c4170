"""Items' encodings: made when a plan says so, kept until one drops them, put into steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.process import logs
from penstock.protocol.from_worker import MediaFailed
from penstock.protocol.media import MediaSpan
from penstock.protocol.to_worker import PartlyEncoded, Plan, SlotWork, ToWorker
from penstock.protocol.worker_resources import DropMedia, LoadMedia, LoadMediaChunk
from penstock_worker.batch.slot_media import TEXT, SlotMedia
from penstock_worker.batch.slots import PlanError, Slot, Slots
from penstock_worker.media.interface import BatchMedia, Sees, Tell
from penstock_worker.media.memory import held_bytes
from penstock_worker.media.pieces import DividedEncoding
from penstock_worker.media.store import MediaStore, StoreBounds, Tensors
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.steps.errors import StepLost
from penstock_worker.steps.feature import StepFeature

if TYPE_CHECKING:
    from torch import Tensor

    from penstock_worker.batch.inputs import Batch

log = logs.get(__name__)


class MediaEncodings(StepFeature):
    """The media of a model with a vision or audio tower. Of pipeline stages, only the first one's
    ranks have embeddings; all of them have positions."""

    name = "media"
    heard = (LoadMedia, LoadMediaChunk, DropMedia)

    def __init__(
        self,
        *,
        rows: int,
        row_bytes: int,
        load_bytes: int,
        sections: bool,
        whole_spans: bool = False,
        joins_spans: bool = True,
        stand_in: int | None = None,
        apart: bool = False,
    ) -> None:
        """`rows` of encodings, `row_bytes` each, are kept at a time, and `load_bytes` of prepared
        items may wait (see Ready.media_bytes). `sections`: whether tokens have positions of three
        numbers. `whole_spans`: whether the tokens of a span see one another. `joins_spans`: whether
        those of several spans may (Media.joined).
        `stand_in`: the id that rows have instead of their placeholders', of a model that makes more
        of an id than what stands in its place; None: it doesn't matter. `apart`: see
        BatchMedia.spans."""
        self.apart = apart
        self.rows = rows
        self.load_bytes = load_bytes
        self.nbytes = rows * row_bytes + held_bytes(load_bytes)
        self.whole_spans = whole_spans
        self.joins_spans = joins_spans
        self.sections = sections
        self.stand_in = stand_in
        self._rows: dict[str, Tensor] = {}
        self._begun: BegunEncoding | None = None
        self._failed: set[str] = set()
        """Items that failed, until they are dropped."""
        self._sees: Sees | None = None
        self._store: MediaStore | None = None
        self._tell: Tell | None = None
        """What tells the session; None before it has said anything of media."""

    def see_with(self, sees: Sees) -> None:
        """Called on the ranks of the first stage, when the weights are loaded."""
        self._sees = sees
        self._store = MediaStore(sees.check, StoreBounds(self.rows, held_bytes(self.load_bytes)))

    def hear(self, message: ToWorker, frames: Sequence[bytes], tell: Tell) -> None:
        if self._store is None:
            return
        self._tell = tell
        match message:
            case LoadMedia():
                self._failed.discard(message.name)
                self._store.load(message, tell)
            case LoadMediaChunk():
                self._store.add(message, frames[0] if len(frames) == 1 else b"")
            case DropMedia():
                self._store.drop(message.name)

    def reset(self) -> None:
        self._rows.clear()
        self._begun = None
        self._failed.clear()
        self._tell = None
        if self._store is not None:
            self._store.clear()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def encode(self, plan: Plan) -> bool:
        """Drops encodings, and makes those that the plan asks for, or parts of them. Raises
        PlanError for more than are kept, and for a second item that is begun and not done."""
        for name in plan.dropped_media:
            self._rows.pop(name, None)
            self._failed.discard(name)
            if self._begun is not None and self._begun.encoding.name == name:
                self._begun = None
        if self._store is not None and self._sees is not None:
            for name in plan.encode:
                self._encode_one(name, self._store, self._sees)
            for part in plan.partly:
                self._go_on(part, self._store, self._sees)
        return bool(plan.encode or plan.partly)

    def _encode_one(self, name: str, store: MediaStore, sees: Sees) -> None:
        """Encodes an item to the end."""
        begun = self._begun
        if begun is not None and begun.encoding.name == name:
            self._begun = None
            with self._blaming(name, begun.tell):
                self._keep(name, begun.encoding.finish(), begun.tell)
            return
        found = self._taken(name, store)
        if found is not None:
            tensors, tell = found
            with self._blaming(name, tell):
                self._keep(name, sees.encode(tensors), tell)

    def _go_on(self, part: PartlyEncoded, store: MediaStore, sees: Sees) -> None:
        """Goes on with an item, or begins it."""
        name, begun = part.name, self._begun
        if begun is None:
            found = self._taken(name, store)
            if found is None:
                return
            tensors, tell = found
            with self._blaming(name, tell):
                begun = self._begun = BegunEncoding(
                    DividedEncoding(name, sees.pieces(tensors)), tell
                )
        elif begun.encoding.name != name and name not in self._failed:
            raise PlanError(f"{name} is to be begun before {begun.encoding.name} is done")
        if begun is not None and begun.encoding.name == name:
            with self._blaming(name, begun.tell):
                begun.encoding.advance(part.until)

    def _taken(self, name: str, store: MediaStore) -> tuple[Tensors, Tell] | None:
        """Returns an item that has come; None if there is none, which is reported."""
        if name in self._failed:
            return None
        found = store.take(name)
        if found is None:
            log.error("an item that is to be encoded isn't here", item=name)
            if self._tell is not None:  # Nothing else reports that there will be no rows.
                self._fail(name, "the worker doesn't have it", self._tell)
        return found

    @contextmanager
    def _blaming(self, name: str, tell: Tell) -> Iterator[None]:
        """An item whose encoding fails, fails alone."""
        try:
            yield
        except (PlanError, GroupLost, StepLost, MemoryError, torch.OutOfMemoryError):
            raise  # The item isn't to blame.
        except Exception:
            log.error("an item can't be encoded", exception=True, item=name)
            self._fail(name, "the model can't encode it", tell)

    def _fail(self, name: str, reason: str, tell: Tell) -> None:
        if self._begun is not None and self._begun.encoding.name == name:
            self._begun = None
        self._failed.add(name)
        tell(MediaFailed(name, reason, "unfit"))

    def _keep(self, name: str, rows: Tensor, tell: Tell) -> None:
        # On a device this waits for its queue: once for an item, and errors are reported in time.
        if not bool(rows.isfinite().all().cpu()):
            self._fail(
                name,
                "the model's weights make numbers of it that are not finite: its files, or their "
                f"dtype ({str(rows.dtype).removeprefix('torch.')}), are to blame",
                tell,
            )
            return
        held = sum(len(each) for other, each in self._rows.items() if other != name)
        if held + len(rows) > self.rows:
            raise PlanError(
                f"{len(rows)} rows are to be kept beside {held}; at most {self.rows} are"
            )
        self._rows[name] = rows

    def extend(self, batch: Batch, scheduled: Sequence[SlotWork], slots: Slots) -> Batch:
        media = self.of_batch(scheduled, slots)
        if media is None:
            return batch
        tokens = batch.tokens
        if self.stand_in is not None and len(media.rows):
            tokens = tokens.copy()
            tokens[media.rows] = self.stand_in
        return replace(batch, tokens=tokens, media=media)

    def of_batch(self, scheduled: Sequence[SlotWork], slots: Slots) -> BatchMedia | None:
        """Returns what stands in place of placeholders in a batch of these works; None if the
        batch is text. A slot whose rows are missing fails."""
        held = slots.of(scheduled)
        if all(slot.media is None for slot in held):
            return None
        pairs = list(zip(scheduled, held, strict=True))
        rows, embeddings = self._embeddings(pairs)
        return BatchMedia(
            rows=rows,
            embeddings=embeddings,
            positions=_of_each(pairs, SlotMedia.positions) if self.sections else None,
            last_seen=self._last_seen(pairs) if self.whole_spans else None,
            between=self._between(pairs) if self.whole_spans else None,
            spans=[_spans(slot) for slot in held] if self.apart else None,
        )

    def _embeddings(self, pairs: _Pairs) -> tuple[np.ndarray, Tensor | None]:
        if self._sees is None:
            return _NO_ROWS, None
        places, parts, row = [_NO_ROWS], [], 0
        for work, slot in pairs:
            end = work.start + work.count
            for span in () if slot.media is None else slot.media.overlapping(work.start, end):
                low, high = max(span.offset, work.start), min(span.end, end)
                part = self._part(slot.media, span, low, high)
                if part is None:
                    slot.failed = slot.failed or "an item of its prompt could not be encoded"
                    continue
                places.append(np.arange(low, high) + (row - work.start))
                parts.append(part)
            row += work.count
        return np.concatenate(places), torch.cat(parts) if parts else None

    def _part(self, media: SlotMedia | None, span: MediaSpan, low: int, high: int) -> Tensor | None:
        """Returns the rows that stand at tokens [low, high)."""
        rows = None if media is None else self._rows.get(media.name(span))
        first = span.first - span.offset
        if rows is None or first + high > len(rows):
            return None
        return rows[first + low : first + high]

    def _last_seen(self, pairs: _Pairs) -> np.ndarray:
        """A span that a chunk cuts can't be computed: its slot fails."""
        for work, slot in pairs:
            end = work.start + work.count
            if slot.media is not None and slot.media.last_seen(end - 1, end)[0] >= end:
                slot.failed = (
                    slot.failed or "a step ended within a span whose tokens see one another"
                )
        ends = np.repeat(
            [work.start + work.count for work, _ in pairs], [work.count for work, _ in pairs]
        )
        return np.minimum(_of_each(pairs, SlotMedia.last_seen), ends - 1)

    def _between(self, pairs: _Pairs) -> np.ndarray | None:
        joined = [slot for _, slot in pairs if slot.media is not None and slot.media.joined]
        if not joined:
            return None
        if self.joins_spans:
            return _of_each(pairs, SlotMedia.between)
        for slot in joined:
            slot.failed = slot.failed or SPANS_APART
        return None


@dataclass
class BegunEncoding:
    """An item that was begun, and whom to tell if it fails."""

    encoding: DividedEncoding
    tell: Tell


SPANS_APART = (
    "several pictures of a prompt see one another with this model, which this worker's kernels "
    "can't compute; the cpu and reference backends can. Send one picture, or start the server with "
    "--device cpu"
)
_Pairs = list[tuple[SlotWork, Slot]]
_NO_ROWS = np.empty(0, dtype=np.int64)


def _spans(slot: Slot) -> list[tuple[int, int]]:
    """Positions of pictures' rows. The last one of a span is the picture's token."""
    spans = () if slot.media is None else slot.media.spans
    return [(span.offset, span.end - 1) for span in spans]


def _of_each(pairs: _Pairs, of_tokens: Callable[[SlotMedia, int, int], np.ndarray]) -> np.ndarray:
    """Puts what a function says of each work's tokens side by side."""
    return np.concatenate(
        [
            of_tokens(slot.media or TEXT, work.start, work.start + work.count)
            for work, slot in pairs
        ],
        axis=-1,
    )
