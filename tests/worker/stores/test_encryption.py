"""Contents in a store that only who has the key can read, or make."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.errors import StartupError
from penstock_worker.stores.sealed_store import SealedStore
from penstock_worker.stores.seals import EncryptingSeal, read_secret
from tests.worker.stores.test_folder import LAYOUT, PAYLOAD, contents, key
from tests.worker.stores.test_plugged import Dict

SECRET = bytes(range(32))


def sealed(secret: bytes, below: Dict) -> SealedStore:
    seal = EncryptingSeal(secret, LAYOUT)
    below.payload_bytes = seal.over(LAYOUT).payload_bytes
    return SealedStore(below, seal)


@pytest.fixture
def below() -> Dict:
    pytest.importorskip(
        "cryptography", reason="no cryptography: pip install 'penstock-llm[encryption]'"
    )
    return Dict()


def test_neither_names_nor_contents_can_be_seen(below: Dict) -> None:
    store = sealed(SECRET, below)
    assert store.payload_bytes == PAYLOAD
    store.write(key(0), contents(0))
    store.write(key(1), contents(0))
    assert store.leading([key(0), key(1), key(2)]) == 2
    assert store.read(key(1)) == contents(0)
    (one, first), (other, second) = below.kept.items()
    assert {one, other}.isdisjoint({key(0), key(1)})
    assert len(first) == len(second) == below.payload_bytes
    for stored in (first, second):
        assert contents(0)[:16] not in stored
    assert first != second


def test_what_another_key_made_or_was_changed_is_a_miss(below: Dict) -> None:
    store = sealed(SECRET, below)
    store.write(key(0), contents(0))
    assert sealed(SECRET[::-1], below).leading([key(0)]) == 0
    ((name, stored),) = below.kept.items()
    for at in (0, 11, 12, len(stored) // 2, len(stored) - 1):
        changed = bytearray(stored)
        changed[at] ^= 4
        below.kept[name] = bytes(changed)
        assert store.read(key(0)) is None
    for short in (b"", stored[:5], stored[:20]):
        below.kept[name] = short
        assert store.read(key(0)) is None
    assert store.num_damaged == 8
    # A block in another one's place.
    below.kept[name] = stored
    store.write(key(1), contents(1))
    names = list(below.kept)
    below.kept[names[1]] = stored
    assert store.read(key(0)) == contents(0)
    assert store.read(key(1)) is None


def test_layouts_and_keys_are_kept_apart(below: Dict) -> None:
    names = {
        EncryptingSeal(secret, layout).over(layout).name
        for secret in (SECRET, SECRET[::-1])
        for layout in (LAYOUT, type(LAYOUT)("other", PAYLOAD))
    }
    assert len(names) == 4
    assert LAYOUT.name not in names


@pytest.mark.parametrize("text", [b"", b"00" * 31, b"00" * 33, b"0g" * 32, bytes(32)])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(text)
    with pytest.raises(StartupError, match="64 hexadecimal digits, as `openssl rand -hex 32`"):
        read_secret(path)
    path.write_text(f" {SECRET.hex().upper()}\n")
    assert read_secret(path) == SECRET


def test_without_the_package_the_start_says_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(StartupError, match=r"pip install 'penstock-llm\[encryption\]'"):
        EncryptingSeal(SECRET, LAYOUT)
