"""Models whose vectors of pictures and of texts lie in one space: an input is a text, or a picture.

A picture's vector is the one row that the model's tower makes of it before the step, by itself. A
text goes through the encoder with others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.model.config import EncoderConfig, SharedSpace
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.loading import ModelMedia
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.pooling.bodies import EncoderBody, Hidden
from penstock_worker.pooling.heads import Head
from penstock_worker.sampler.transfers import transfers

CPU = torch.device("cpu")

MIXED = "a picture is an input by itself, without any text"


def is_picture(slot: Slot) -> bool:
    """Whether the slot's prompt is one item's one row, and nothing else."""
    spans = () if slot.media is None else slot.media.spans
    return len(spans) == 1 and len(slot.token_ids) == spans[0].tokens == 1


def chosen_token(space: SharedSpace, token_ids: list[int]) -> int:
    """Returns the place of the token of which a text's vector is made (see SharedSpace)."""
    match space.token:
        case "highest":
            return token_ids.index(max(token_ids))
        case "end" if space.end_token in token_ids:
            return token_ids.index(space.end_token)
    return len(token_ids) - 1


@dataclass(frozen=True)
class SpaceParts:
    """What makes vectors in one space."""

    vector: Head
    """Makes a text's of one of its hidden states."""
    space: SharedSpace
    media: MediaEncodings
    """Rows of pictures, which are their vectors."""


class SpaceBody:
    """Body whose vectors are those of texts and of pictures."""

    def __init__(self, texts: EncoderBody, parts: SpaceParts) -> None:
        """`texts`: their hidden states. `parts`: on the same device; their head makes vectors of
        several texts at once."""
        self.device = texts.device
        self._texts = texts
        self._vector = parts.vector
        self._space = parts.space
        self._media = parts.media
        self._transfers = transfers(texts.device)

    @property
    def layers_done(self) -> int:
        return self._texts.layers_done

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        """The vector of a slot that has failed is zero."""
        texts = [work for work in works if slots[work.slot].media is None]
        pictures = [work for work in works if slots[work.slot].media is not None]
        nothing = torch.zeros(1, self._space.size, device=self.device)
        found = [nothing, *(self._of_picture(work, slots, nothing) for work in pictures)]
        if texts:
            found.append(self._of_texts(texts, slots))
        slot_order = [work.slot for work in (*pictures, *texts)]
        place = {slot: number for number, slot in enumerate(slot_order, 1)}
        (order,) = self._transfers.send([np.array([place[work.slot] for work in works])])
        return Hidden(torch.cat(found).index_select(0, order), None)

    def _of_texts(self, texts: list[SlotWork], slots: Slots) -> Tensor:
        rows = self._texts.rows(texts, slots)
        starts = np.cumsum([0, *(work.count for work in texts)])[:-1]
        own = [chosen_token(self._space, slots[work.slot].token_ids) for work in texts]
        (places,) = self._transfers.send([starts + own])
        return self._vector(rows.index_select(0, places).float())

    def _of_picture(self, work: SlotWork, slots: Slots, nothing: Tensor) -> Tensor:
        slot = slots[work.slot]
        if not is_picture(slot):
            slot.failed = slot.failed or MIXED
            return nothing
        batch = self._media.of_batch([work], slots)
        if batch is None or batch.embeddings is None:
            return nothing
        return batch.embeddings.float()

    def cancel(self) -> None:
        self._texts.cancel()


class Pictures:
    """What a model makes of pictures, planned before its weights are read. Of a model that takes
    none, it changes nothing."""

    def __init__(
        self,
        prepared: PreparedModel,
        setup: Setup,
        dtype: torch.dtype,
        threads: int,
        device: torch.device = CPU,
    ) -> None:
        """`dtype`: of the tower, which is on `device`. `threads`: that encode a picture on a
        CPU."""
        config = prepared.config
        self._space = config.space if isinstance(config, EncoderConfig) else None
        self._media: ModelMedia | None = None
        if self._space is not None:
            self._media = ModelMedia(prepared, setup, ALONE, dtype, device, threads)

    @property
    def held(self) -> MediaEncodings | None:
        return None if self._media is None else self._media.encodings

    def load(self, head: Head | None, count_layer: Callable[[], None]) -> SpaceParts | None:
        """Reads the tower. Returns None for a model that takes no pictures. `head` is what makes
        the vector of a text; `count_layer` is called after each of the tower's layers. Raises
        UnsupportedModel for weights that don't fit."""
        if self._space is None or self._media is None or self.held is None:
            return None
        if head is None:
            raise UnsupportedModel("nothing makes the vector of a text")
        self._media.load()(count_layer)
        return SpaceParts(head, self._space, self.held)
