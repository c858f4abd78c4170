"""Which version of the protocol two sides speak."""

from __future__ import annotations

from penstock.protocol import PROTOCOL_VERSIONS


def agree(offered: list[int]) -> int | None:
    """The newest protocol version that both sides speak, or None."""
    return next((version for version in PROTOCOL_VERSIONS if version in offered), None)


def disagreement(offered: list[int]) -> str:
    """Why a session can't be: names what each side speaks."""
    ours = list(PROTOCOL_VERSIONS)
    return (
        f"no protocol version in common: the engine core supports {ours}, the peer {offered[:16]}"
    )
