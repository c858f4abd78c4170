"""The bookkeeping of live states of recurrent layers, wherever their memory is.

A state can't be computed again from its tokens without all tokens before, so each layer's knows how
many tokens it stands for, and a token is never taken up twice:

- A sequence that gets a slot starts with zeros, or with a checkpoint.
- The last token may be asked for once more, because its grammar mask was late or because a step of
  single tokens has failed: the layer's result of that token is kept for that.
- A chunk of tokens may be computed once more because a step has failed: the state before it is kept
  while the step is computed.
- Drafts may be wrong: while a step computes them, the state after each row that may be the last
  true one is copied to a snapshot, and the state goes back to it.
- If a layer fails in the middle of a sequence's tokens, nothing is left to go on with: the sequence
  fails, and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.model.kv_layout import STATE_BYTES, KVGroup
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.inputs import Drafts
from penstock_worker.batch.slots import PlanError
from penstock_worker.states.snapshots import Snapshots
from penstock_worker.steps.feature import StepFeature

if TYPE_CHECKING:
    from torch import Tensor

LOST = -1
"""What stands in place of a number of tokens: the state is that of no tokens, and of no use."""


class CheckpointReader(Protocol):
    """Reads checkpoints of recurrent states."""

    def read(self, blocks: Sequence[int], state: Tensor) -> None:
        """Copies the checkpoint in these blocks to `state`, [numbers of all layers] float32."""


@dataclass
class Held:
    """What a slot has."""

    state: Tensor
    """[numbers of all layers] float32, a view of the slot's memory."""
    reached: list[int]
    """The number of tokens that each layer's state stands for."""
    checkpoints: dict[int, list[int]] = field(default_factory=dict)
    """Blocks, by the number of tokens after which the state is to be copied to them."""
    room: int = 0
    """The last of these numbers that blocks were given for."""
    snapshots: dict[int, list[int]] = field(default_factory=dict)
    """Blocks for the states of the present work's drafts, as `checkpoints` has them."""
    last: dict[int, Tensor] = field(default_factory=dict)
    """What the scan of its last token returned, by layer, [V]."""
    before: tuple[Tensor, list[int]] | None = None
    """`state` and `reached` before the present work, if that has several tokens. A state of zeros
    has no length here."""

    @property
    def copies(self) -> dict[int, list[int]]:
        """Checkpoints and snapshots: one that is both is a checkpoint."""
        return self.snapshots | self.checkpoints if self.snapshots else self.checkpoints

    def save(self) -> None:
        """Sets `before`."""
        state = self.state.clone() if any(self.reached) else self.state[:0]
        self.before = (state, self.reached.copy())

    def restore(self) -> None:
        """Goes back to `before`, if it was set. Single tokens need none: what layers have done of
        them is kept in `last`."""
        if self.before is None:
            return
        state, reached = self.before
        if len(state):
            self.state.copy_(state)
        else:
            self.state.zero_()
        self.reached = reached.copy()


class LiveStates(StepFeature):
    """The states of all slots. A subclass has their memory, `_live`, [slots, numbers] float32, and
    `_blocks`, before the first sequence is admitted."""

    name = "states"
    _live: Tensor
    _blocks: CheckpointReader

    def __init__(
        self,
        sizes: Sequence[int],
        group: KVGroup,
        slots: int,
        results: int = 0,
        snapshots: int = 0,
    ) -> None:
        """`sizes`: numbers of the state in each of this rank's layers, 0 where there is none.
        `group`: that of the recurrent layers. `results`: numbers of what all layers' scans return
        for a token. `snapshots`: how many there may be at a time (see num_snapshots)."""
        if group.every is None:
            raise ValueError("the KV group is not that of recurrent layers")
        self._sizes = sizes
        self._places = np.cumsum([0, *sizes]).tolist()
        self._every = group.every
        self._pieces = group.blocks
        self._slots = slots
        self._results = results
        self._held: dict[int, Held] = {}
        self._some_layer = next((at for at, size in enumerate(sizes) if size), 0)
        """A layer that has states; all of these stand for the same tokens between steps."""
        self._snapshots = Snapshots(snapshots, group.blocks)

    @property
    def own_blocks(self) -> int:
        """Returns how many KV blocks, the last ones, states take in addition to those that the
        engine core knows of."""
        return self._snapshots.blocks

    @property
    def nbytes(self) -> int:
        """Bytes of all slots: states, and what layers have returned for the last tokens."""
        return STATE_BYTES * self._slots * (sum(self._sizes) + self._results)

    @property
    def copied_bytes(self) -> int:
        """Bytes that a slot takes besides while a step computes several of its tokens."""
        return STATE_BYTES * sum(self._sizes)

    def reset(self) -> None:
        self._held.clear()
        self._snapshots.clear()

    def take(self, plan: Plan) -> None:
        for held in self._held.values():
            held.before = None
            self._forget_drafts(held)
        for number in plan.released:
            self._held.pop(number, None)
        for new in plan.admitted:
            self._start(new)
        for work in plan.work:
            self._begin(work)

    def _start(self, new: NewSequence) -> None:
        start, states = new.state_at, new.states
        if start < 0:
            raise PlanError(f"slot {new.slot} starts behind token {start}: there is no checkpoint")
        held = Held(self._live[new.slot], [start] * len(self._sizes), room=start)
        held.room -= start % self._every
        self._held[new.slot] = held
        if not start:
            held.state.zero_()
        else:
            found, states = states[: self._pieces], states[self._pieces :]
            if len(found) < self._pieces:
                raise PlanError(f"slot {new.slot}: its checkpoint has {len(found)} blocks")
            self._blocks.read(found, held.state)
        self._add(new.slot, held, states)
        self._add_tail(new, held)

    def _add(self, number: int, held: Held, blocks: list[int]) -> None:
        """Blocks for its next checkpoints."""
        if len(blocks) % self._pieces:
            raise PlanError(
                f"slot {number}: {len(blocks)} blocks for checkpoints of {self._pieces} each"
            )
        for at in range(0, len(blocks), self._pieces):
            held.room += self._every
            held.checkpoints[held.room] = blocks[at : at + self._pieces]

    def _add_tail(self, new: NewSequence, held: Held) -> None:
        if not new.tail:
            return
        if len(new.tail) != self._pieces:
            raise PlanError(f"slot {new.slot}: its tail has {len(new.tail)} blocks")
        if new.tail_at <= new.state_at or new.tail_at % self._every == 0:
            raise PlanError(f"slot {new.slot}: there is no tail behind token {new.tail_at}")
        held.checkpoints[new.tail_at] = new.tail

    def _begin(self, work: SlotWork) -> None:
        held, end = self._held[work.slot], work.start + work.count
        self._add(work.slot, held, work.states)
        if held.room + self._every <= end:
            raise PlanError(
                f"slot {work.slot}: {end} tokens, and no blocks for checkpoints behind {held.room}"
            )
        for at in [at for at in held.checkpoints if at <= work.start]:
            del held.checkpoints[at]  # It is written, and its blocks may be others'.
        if work.count > 1 or work.draft:
            held.save()

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        for work in scheduled:
            self._held[work.slot].restore()
            self._forget_drafts(self._held[work.slot])

    def fitting(self, scheduled: Sequence[SlotWork], drafts: Drafts) -> Drafts:
        found: dict[int, Sequence[int]] = {}
        for work in scheduled:
            ids = drafts.get(work.slot)
            if ids:
                held, end = self._held[work.slot], work.start + work.count
                # No further than there are blocks for checkpoints.
                most = max(0, min(len(ids), held.room + self._every - 1 - end))
                count = self._take_snapshots(held, end, most)
                if count:
                    found[work.slot] = ids[:count]
        return found

    def _take_snapshots(self, held: Held, end: int, most: int) -> int:
        """Returns for how many drafts after token `end` there are snapshots: of the states before
        each of them."""
        for count in range(most):
            blocks = self._snapshots.take()
            if blocks is None:
                return count
            held.snapshots[end + count] = blocks
        return most

    def keep(self, number: int, tokens: int) -> None:
        held = self._held[number]
        blocks = held.copies.get(tokens)
        if held.before is not None and held.before[1][self._some_layer] == tokens:
            held.restore()
        elif held.reached[self._some_layer] != tokens and blocks is not None:
            self._blocks.read(blocks, held.state)
            held.reached = [tokens] * len(self._sizes)
        self._forget_drafts(held)

    def _forget_drafts(self, held: Held) -> None:
        for blocks in held.snapshots.values():
            self._snapshots.give(blocks)
        held.snapshots = {}

    def _part(self, held: Held, layer: int) -> Tensor:
        return held.state[self._places[layer] : self._places[layer + 1]]
