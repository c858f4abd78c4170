"""Data from which a request's reply is written, here or in another process."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock_gateway.generate.reply import ReplyFormat, ReplyHead
    from penstock_gateway.models.backend import EngineInfo


class ReplySpec(msgspec.Struct, frozen=True):
    """Makes a ReplyFormat, together with what a reply repeats and the model. An endpoint has one of
    its own, with whatever of the body its replies show."""

    @abstractmethod
    def format(self, head: ReplyHead, engine: EngineInfo) -> ReplyFormat:
        """What writes the reply to one request."""
