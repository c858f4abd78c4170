"""Which salt each block's contents were computed under."""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.settings import CacheSettings
from penstock.protocol.to_worker import NO_BLOCK, Copy, FetchKV, NewSequence, Plan, Save, SaveKV
from tests.engine.scores import RequestScore


class Salts:
    """Follows all plans of a worker's. num_reused: tokens that sequences found computed when they
    started."""

    def __init__(self, cache: CacheSettings) -> None:
        self.num_reused = 0
        self.num_groups = 1  # KV groups, each with its own table in what plans bring
        self.state_blocks = 0  # of a checkpoint of recurrent states
        self._block_size = cache.kv_block_size
        self._shares = cache.enable_prefix_caching
        self._tables: dict[int, list[list[int]]] = {}
        self._salts: dict[int, str] = {}
        self._host_salts: dict[int, str] = {}
        self._disk_salts: dict[bytes, str] = {}

    def join(self, other: Salts) -> None:
        """What the one's worker keeps, the other's finds."""
        self._disk_salts = other._disk_salts

    def check(self, plan: Plan, asked_by: Callable[[int], RequestScore]) -> None:
        """No sequence is given a block that holds what another salt computed. asked_by: a slot."""
        self._follow(plan.saves, plan.copies)
        size = self._block_size
        starts = {work.slot: work.start for work in plan.work}
        for new in plan.admitted:
            # Who computes nothing yet has the blocks of what was found, and no other.
            start = starts.get(new.slot)
            self._admit(new, self._salt(asked_by(new.slot)), start)
            self.num_reused += start or 0
        for work in plan.work:
            salt = self._salt(asked_by(work.slot))
            self._salts |= dict.fromkeys(work.states, salt)
            more = self._by_group(work.new_blocks)
            for table, blocks in zip(self._tables[work.slot], more, strict=True):
                table += blocks
                for block in table[work.start // size :]:
                    self._salts[block] = salt

    def save(self, message: SaveKV) -> None:
        """Blocks are kept without a plan."""
        self._follow(message.saves, [])

    def fetch(self, message: FetchKV) -> None:
        """Blocks that are read from disk have the salt under which they were computed."""
        self._follow(message.saves, message.copies)
        for key, block in zip(message.keys, message.blocks, strict=True):
            self._salts[block] = self._disk_salts[key]

    def _follow(self, saves: list[Save], copies: list[Copy]) -> None:
        for save in saves:
            salt = self._salts[save.block]
            assert self._disk_salts.setdefault(save.key, salt) == salt, "one name for two salts"
        for copy in copies:
            source = self._host_salts if copy.kind == "in" else self._salts
            target = self._host_salts if copy.kind == "out" else self._salts
            target[copy.target] = source[copy.source]

    def _salt(self, asked: RequestScore) -> str:
        if not self._shares:
            return f"request {asked.submit.request}"
        return f"{asked.submit.tenant}|{asked.submit.cache_salt}|{asked.submit.adapter}"

    def _admit(self, new: NewSequence, salt: str, start: int | None) -> None:
        tables = self._tables[new.slot] = self._by_group(new.blocks)
        count = None if start is None else -(-start // self._block_size)
        found = [block for table in tables for block in table[:count]]
        old = self.state_blocks if new.state_at else 0
        found += new.states[:old]
        self._salts |= dict.fromkeys(new.states[old:] + new.tail, salt)
        for block in found:
            assert block == NO_BLOCK or self._salts[block] == salt, "of another salt"

    def _by_group(self, blocks: list[int]) -> list[list[int]]:
        each = len(blocks) // self.num_groups
        return [blocks[at * each : (at + 1) * each] for at in range(self.num_groups)]
