"""Where receipts are given: who writes and signs them is a package of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.config.bundled import RECEIPTS, bundled
from penstock.request.receipt import PublicKey

if TYPE_CHECKING:
    from penstock.request.sampling_params import SamplingParams
    from penstock_gateway.models.backend import AskedModel


class Receipts(Protocol):
    """Writes receipts, and signs them with the server's key."""

    @property
    def public(self) -> PublicKey:
        """The key that checks them."""

    async def receipted(
        self,
        prompts: list[list[int]],
        params: list[SamplingParams],
        reply: Any,
        asked: AskedModel,
        wish: str,
    ) -> tuple[list[SamplingParams], Any]:
        """Returns the parameters, with seeds, and a ReplyFormat that ends in a receipt. reply: the
        ReplyFormat of an endpoint that gives some.  wish: see x-penstock-receipt."""

    def signed(self, batch: str, lines: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """Returns the lines of a batch's output, those of receipts with their places in the batch.
        lines: read twice."""


def receipts_of(key_file: str | None) -> Receipts | None:
    """Returns what gives receipts with the key in that file; None without a file. Raises
    StartupError for a file without a key, or where the extra is not installed."""
    if key_file is None:
        return None
    (kept,) = bundled(RECEIPTS)
    found: Receipts = kept(Path(key_file))
    return found
