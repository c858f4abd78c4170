"""The tree of a batch's receipts, against the known roots of Certificate Transparency."""

from __future__ import annotations

import hashlib

import pytest

from penstock_receipts.tree import ReceiptTree, root_from

LEAVES = [
    bytes.fromhex(each)
    for each in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
"""Of the first n leaves."""


def leaves(count: int) -> list[bytes]:
    return [hashlib.sha256(b"\0" + each).digest() for each in LEAVES[:count]]


@pytest.mark.parametrize(("count", "root"), list(enumerate(ROOTS, start=1)))
def test_roots_are_those_of_rfc_6962(count: int, root: str) -> None:
    assert ReceiptTree(leaves(count)).root.hex() == root


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 64, 100])
def test_every_path_leads_to_the_root_and_no_other_place_does(count: int) -> None:
    each = [hashlib.sha256(bytes([at])).digest() for at in range(count)]
    tree = ReceiptTree(each)
    for at, leaf in enumerate(each):
        path = tree.path(at)
        assert root_from(leaf, at, count, path) == tree.root
        assert root_from(b"another leaf", at, count, path) != tree.root
        assert root_from(leaf, at, count, [*path, leaf]) is None
        assert root_from(leaf, at, (count + 1) << 8, path) is None
        assert root_from(leaf, count, count, path) is None
        for other in range(count):
            assert other == at or root_from(leaf, other, count, path) != tree.root


def test_a_tree_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="needs leaves"):
        ReceiptTree([])
