"""Which salt each block's contents were computed under."""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.settings import CacheSettings
from penstock.protocol.to_worker import NO_BLOCK, Plan
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

    def check(self, plan: Plan, asked_by: Callable[[int], RequestScore]) -> None:
        """No sequence is given a block that holds what another salt computed. asked_by: a slot."""
        for copy in plan.copies:
            source = self._host_salts if copy.kind == "in" else self._salts
            target = self._host_salts if copy.kind == "out" else self._salts
            target[copy.target] = source[copy.source]
        size = self._block_size
        admitted = {new.slot: new for new in plan.admitted}
        for work in plan.work:
            asked = asked_by(work.slot)
            salt = f"{asked.submit.tenant}|{asked.submit.cache_salt}|{asked.submit.adapter}"
            if not self._shares:
                salt = f"request {asked.submit.request}"
            if work.slot in admitted:
                new = admitted[work.slot]
                tables = self._tables[work.slot] = self._by_group(new.blocks)
                found = [block for table in tables for block in table[: -(-work.start // size)]]
                old = self.state_blocks if new.state_at else 0
                found += new.states[:old]
                self._salts |= dict.fromkeys(new.states[old:] + new.tail, salt)
                for block in found:
                    assert block == NO_BLOCK or self._salts[block] == salt, "of another salt"
                self.num_reused += work.start
            self._salts |= dict.fromkeys(work.states, salt)
            more = self._by_group(work.new_blocks)
            for table, blocks in zip(self._tables[work.slot], more, strict=True):
                table += blocks
                for block in table[work.start // size :]:
                    self._salts[block] = salt

    def _by_group(self, blocks: list[int]) -> list[list[int]]:
        each = len(blocks) // self.num_groups
        return [blocks[at * each : (at + 1) * each] for at in range(self.num_groups)]
