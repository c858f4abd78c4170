"""Stores beside each other, and such that raise or give what they shouldn't: a miss each time, and
never other contents."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from penstock_worker.stores import plugged
from penstock_worker.stores.interface import KVStore
from penstock_worker.stores.plugged import GuardedStore
from penstock_worker.stores.sealed_store import SealedStore
from penstock_worker.stores.seals import DigestSeal
from penstock_worker.stores.stores_in_order import StoresInOrder
from tests.worker.stores.test_folder import PAYLOAD, contents, key

STORED = PAYLOAD + DigestSeal.extra_bytes


class Dict:
    """A store as simple as can be."""

    payload_bytes = PAYLOAD
    num_damaged = 0

    def __init__(self, *numbers: int) -> None:
        self.kept = {key(number): contents(number) for number in numbers}
        self.closed = False

    def has(self, key: bytes) -> bool:
        return key in self.kept

    def leading(self, keys: Sequence[bytes]) -> int:
        return next((at for at, each in enumerate(keys) if each not in self.kept), len(keys))

    def read(self, key: bytes) -> bytes | None:
        return self.kept.get(key)

    def write(self, key: bytes, payload: bytes) -> bool:
        self.kept[key] = payload
        return True

    def close(self) -> None:
        self.closed = True


def test_several_find_together_what_each_has_a_part_of() -> None:
    fast, slow = Dict(0, 1, 4), Dict(2, 3, 4, 6)
    both = StoresInOrder([fast, slow])
    keys = [key(n) for n in range(8)]
    assert both.leading(keys) == 5
    assert [both.read(each) for each in keys[:5]] == [contents(n) for n in range(5)]
    assert both.read(key(5)) is None
    assert both.leading(keys[5:]) == 0
    assert both.has(key(4))
    assert not both.has(key(0)), "one of them needs it still"
    assert both.write(key(0), contents(0))
    assert slow.read(key(0)) == contents(0)
    both.close()
    assert fast.closed
    assert slow.closed


class Moody(Dict):
    """Raises, or gives anything."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    def _mood(self, right: object) -> object:
        wrong = [right, right, -3, 10**6, None, b"", "text", bytes(STORED), b"x" * (STORED + 1)]
        chosen = self.chance.randrange(len(wrong) + 1)
        if chosen == len(wrong):
            raise RuntimeError("not today")
        return wrong[chosen]

    def has(self, key: bytes) -> bool:
        return self._mood(super().has(key))  # type: ignore[return-value]

    def leading(self, keys: Sequence[bytes]) -> int:
        return self._mood(super().leading(keys))  # type: ignore[return-value]

    def read(self, key: bytes) -> bytes | None:
        return self._mood(super().read(key))  # type: ignore[return-value]

    def write(self, key: bytes, payload: bytes) -> bool:
        super().write(key, payload)
        return self._mood(True)  # type: ignore[return-value]

    def close(self) -> None:
        raise RuntimeError("never")


def test_whatever_a_plug_in_does_contents_are_right_or_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugged, "RETRY_SECONDS", 0.0)
    chance = random.Random(3)
    store: KVStore = SealedStore(GuardedStore(Moody(chance), "moody", STORED), DigestSeal())
    assert store.payload_bytes == PAYLOAD
    right = 0
    for _ in range(2000):
        number = chance.randrange(8)
        store.write(key(number), contents(number))
        assert isinstance(store.has(key(number)), bool)
        assert 0 <= store.leading([key(number)] * 3) <= 3
        found = store.read(key(number))
        assert found in (None, contents(number))
        right += found is not None
    assert right > 100
    assert store.num_damaged > 100
    store.close()


def test_one_that_raises_is_left_in_peace_for_a_while() -> None:
    class Broken(Dict):
        asked = 0

        def read(self, key: bytes) -> bytes | None:
            self.asked += 1
            raise OSError("gone")

    broken = Broken(0)
    store = GuardedStore(broken, "broken", PAYLOAD)
    assert store.leading([key(0)]) == 1
    assert [store.read(key(0)) for _ in range(9)] == [None] * 9
    assert broken.asked == 1
    assert store.leading([key(0)]) == 0
    assert not store.write(key(1), contents(1))
    store._not_before = 0.0
    assert store.leading([key(0)]) == 1


@pytest.mark.parametrize("at", [0, 31, 32, STORED - 1])
def test_a_flipped_byte_is_a_miss(at: int) -> None:
    below = Dict()
    store = SealedStore(below, DigestSeal())
    store.write(key(0), contents(0))
    assert store.read(key(0)) == contents(0)
    below.kept[key(1)] = below.kept[key(0)]
    assert store.read(key(1)) is None, "another key's"
    changed = bytearray(below.kept[key(0)])
    changed[at] ^= 1
    below.kept[key(0)] = bytes(changed)
    assert store.read(key(0)) is None
    assert store.num_damaged == 2
