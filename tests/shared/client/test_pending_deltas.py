"""Deltas that wait, against each sequence's text put together by hand."""

from __future__ import annotations

import random

from penstock.client.deltas import Pending, SequenceDelta


def test_what_waits_is_one_delta_for_each_sequence_in_the_order_of_their_first() -> None:
    draw = random.Random(7)
    for _ in range(300):
        pending, texts, ids = Pending(), dict[int, str](), dict[int, list[int]]()
        for step in range(draw.randrange(6)):
            index = draw.randrange(3)
            pending.add(SequenceDelta(index=index, text=f"<{step}>", token_ids=[step]))
            texts[index] = texts.get(index, "") + f"<{step}>"
            ids[index] = [*ids.get(index, []), step]
            assert len(pending) == len(texts)
            if draw.random() < 0.3:
                pending.peek()
        peeked = pending.peek()
        assert [(d.index, d.text, d.token_ids) for d in peeked] == [
            (index, texts[index], ids[index]) for index in texts
        ]
        assert pending.take() == peeked
        assert not pending
        assert pending.take() == []
