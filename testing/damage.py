"""Files that somebody has damaged: what decoders get from strangers."""

from __future__ import annotations

import random


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, cut out, doubled, or the end cut off; never empty."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 2, 8, 64))):
        at = chance.randrange(len(out))
        match chance.randrange(5):
            case 0:
                out[at] = chance.randrange(256)
            case 1:
                out[at : at + 4] = chance.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
            case 2:
                del out[at : at + chance.randrange(1, 40)]
            case 3:
                out[at:at] = out[at : at + chance.randrange(1, 400)]
            case _:
                del out[at + 1 :]
        if not out:
            return b"\0"
    return bytes(out)
