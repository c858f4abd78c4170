"""Text that repeats nothing is looked at rarely, and text that does again at once."""

from __future__ import annotations

from itertools import pairwise

from penstock_worker.speculation.lookup import GLANCE, LONGEST, LookPace


def looks(pace: LookPace, start: int, tokens: int, *, right: bool | None) -> list[int]:
    """The numbers of known tokens at which there was a look. right: what becomes of its guess;
    None: it found nothing."""
    found, guessed = [], False
    for known in range(start, start + tokens):
        if guessed:
            pace.judge([7], 7 if right else 8)
            guessed = False
        if pace.due(known):
            found.append(known)
            pace.looked(known, found=right is not None)
            guessed = right is not None
    return found


def test_wrong_guesses_make_looks_rare() -> None:
    pace = LookPace()
    at = looks(pace, 0, 400, right=False)
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert gaps[:3] == [1, 1, 1]
    assert gaps == sorted(gaps)
    assert gaps[-1] == LONGEST
    assert len(at) < 40


def test_one_right_guess_brings_them_back() -> None:
    pace = LookPace()
    looks(pace, 0, 400, right=False)
    at = looks(pace, 400, 200, right=True)
    assert at[0] <= 400 + LONGEST
    assert at[1:] == list(range(at[1], 600))
    assert at[1] - at[0] <= LONGEST


def test_where_nothing_is_found_there_are_glances() -> None:
    at = looks(LookPace(), 0, 100, right=None)
    assert at[:9] == list(range(9))
    assert at[-1] - at[-2] == GLANCE
