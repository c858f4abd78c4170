"""The terminal of these tests, however what was written comes."""

from __future__ import annotations

import pytest

from tests.system.terminal import Screen

WRITTEN = "2 × 3\r\n\x1b[?2004h\x1b[1;36m… \x1b[0mПариж\x1b=\r\n\x01\x1b[2m\x02(9 tokens)\x1b[0m"
PLAIN = "2 × 3\n… Париж\n(9 tokens)"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_what_comes_in_pieces_is_the_same_and_only_grows(size: int) -> None:
    screen, before = Screen(), ""
    raw = WRITTEN.encode()
    for at in range(0, len(raw), size):
        screen.add(raw[at : at + size])
        assert screen.plain.startswith(before)
        assert PLAIN.startswith(screen.plain)
        before = screen.plain
    assert screen.plain == PLAIN
    assert screen.seen == WRITTEN
