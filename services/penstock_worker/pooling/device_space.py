"""Vectors of texts and of pictures in one space, on a device with a queue (see `space`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.uploads import Uploads
from penstock_worker.pooling.device_body import DeviceEncoderBody, Hidden
from penstock_worker.pooling.space import MIXED, SpaceParts, chosen_token, is_picture


class DeviceSpaceBody:
    """DeviceBody whose vectors are those of texts and of pictures."""

    def __init__(self, texts: DeviceEncoderBody, parts: SpaceParts) -> None:
        """`texts`: their hidden states. `parts`: on the same device; their head makes vectors of
        several texts at once."""
        self.device = texts.device
        self._texts = texts
        self._vector = parts.vector
        self._space = parts.space
        self._media = parts.media
        self._uploads = Uploads(texts.device)

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
        (order,) = self._uploads.send([np.array([place[work.slot] for work in works])])
        return Hidden(torch.cat(found).index_select(0, order), None)

    def _of_texts(self, texts: list[SlotWork], slots: Slots) -> Tensor:
        rows = self._texts.rows(texts, slots)
        starts = np.cumsum([0, *(work.count for work in texts)])[:-1]
        own = [chosen_token(self._space, slots[work.slot].token_ids) for work in texts]
        (places,) = self._uploads.send([starts + own])
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
