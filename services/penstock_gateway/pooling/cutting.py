"""Fields of Text Embeddings Inference that say how texts are cut."""

from __future__ import annotations

from typing import Literal, Protocol

from penstock_gateway.pooling.endpoint import Call

Direction = Literal["left", "right", "Left", "Right"]


class CutFields(Protocol):
    """Fields that say how texts are cut."""

    @property
    def truncate(self) -> bool | None: ...

    @property
    def truncation_direction(self) -> Direction | None: ...


def read_options(call: Call, fields: CutFields | None) -> None:
    """Lets the call cut texts where that is asked for."""
    if fields is not None and fields.truncate:
        call.may_cut()
        if fields.truncation_direction in ("left", "Left"):
            call.side = "left"
