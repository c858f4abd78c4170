"""Runs a model whose layers are in several KV groups, and takes blocks away behind windows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from penstock.model.kv_layout import KVLayout
from penstock.protocol.to_worker import NO_BLOCK
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.interface import Batch, Forward


@dataclass(frozen=True)
class Course:
    """What is computed: tokens in chunks, over a pool of blocks."""

    tokens: np.ndarray
    chunks: tuple[int, ...]
    block_size: int
    blocks: int


def in_one_chunk(forward: Forward, groups: int, course: Course) -> torch.Tensor:
    """With a table that keeps everything, for each group."""
    length = len(course.tokens)
    width = -(-length // course.block_size)
    tables = [np.arange(width) + width * group for group in range(groups)]
    more = tuple([each] for each in tables[1:])
    batch = Batch(course.tokens, [tables[0]], np.array([0]), np.array([length]), more)
    return in_torch(forward.logits(batch, np.arange(length))).cpu()


class Forgetful:
    """Computes a sequence in chunks beside another one. What a group's layers don't see any more is
    filled with not-a-number, and then with what other tokens need; its entry in the table is
    `behind`, or stays."""

    def __init__(
        self, forward: Forward, layout: KVLayout, course: Course, behind: int | None
    ) -> None:
        self.forward = forward
        self.groups = layout.groups
        self.course = course
        self.behind = behind
        self.free = list(range(course.blocks))
        random.Random(3).shuffle(self.free)
        self.tables: list[list[list[int]]] = [[[] for _ in self.groups] for _ in range(2)]
        poison(forward, self.free)

    def run(self) -> torch.Tensor:
        found, start = [], 0
        for count in self.course.chunks:
            for own in self.tables:
                self.grow(own, start + count)
            part = self.course.tokens[start : start + count]
            batch = Batch(
                np.concatenate((part[::-1], part)),
                self.of(0),
                np.array([start, start]),
                np.array([count, count]),
                tuple(self.of(group) for group in range(1, len(self.groups))),
            )
            found.append(in_torch(self.forward.logits(batch, np.arange(count, 2 * count))).cpu())
            start += count
            for own in self.tables:
                self.forget(own, start)
        return torch.cat(found)

    def of(self, group: int) -> list[np.ndarray]:
        return [np.array(own[group]) for own in self.tables]

    def grow(self, own: list[list[int]], tokens: int) -> None:
        for table in own:
            while len(table) * self.course.block_size < tokens:
                table.append(self.free.pop())

    def forget(self, own: list[list[int]], computed: int) -> None:
        for group, table in zip(self.groups, own, strict=True):
            for at in range(group.first_seen(computed) // self.course.block_size):
                if table[at] >= 0 and table[at] not in self.free:
                    poison(self.forward, [table[at]])
                    self.free.insert(0, table[at])
                if self.behind is not None:
                    table[at] = self.behind


def poison(forward: Forward, blocks: list[int]) -> None:
    """Not-a-number, in every format of the cache."""
    for part in forward.kv_blocks():
        part[blocks] = 255


def check(one: Forward, several: Callable[[], Forward], layout: KVLayout, course: Course) -> None:
    """The bits of a forward pass with one group."""
    with torch.inference_mode():
        true = in_one_chunk(one, 1, course)
        assert bool(true.isfinite().all())
        whole = in_one_chunk(several(), len(layout.groups), course)
        assert torch.equal(true, whole)
        for behind in (None, NO_BLOCK):
            assert torch.equal(true, Forgetful(several(), layout, course, behind).run())
