"""Names of the tensors of towers: how a family's table is read, and that it leads back."""

from __future__ import annotations

import pytest

from penstock.families.family import TowerFamily
from penstock.families.served import AUDIO_FAMILIES
from penstock.families.tower_names import TowerNames, beginning, file_names, namer, under
from penstock.families.vision.served import VISION_FAMILIES
from penstock.prepare.mmproj.reading import EARS, KINDS

NAMES = under(
    "tower",
    {
        "norm": "last_norm",
        "buffer": None,
        **under("blocks.*", {"attn.proj": "out_proj", "attn": ""}, "layers.*"),
        **under("blocks.*.experts.*", {"up": "up_proj"}, "layers.*.experts.*"),
        "mlp.0": "projector.1",
    },
)
OURS = {
    "tower.norm.weight": "last_norm.weight",
    "model.tower.norm.weight": "last_norm.weight",
    "model.model.tower.norm.weight": None,
    "tower.normal.weight": "normal.weight",
    "towers.norm.weight": None,
    "tower.buffer": None,
    "tower.blocks.12.attn.proj.bias": "layers.12.out_proj.bias",
    "tower.blocks.12.attn.q_norm.weight": "layers.12.q_norm.weight",
    "tower.blocks.12.experts.3.up.weight": "layers.12.experts.3.up_proj.weight",
    "tower.blocks.12.experts.3.down.weight": "layers.12.experts.3.down.weight",
    "tower.blocks.x.attn.proj.bias": "blocks.x.attn.proj.bias",
    "tower.mlp.0.weight": "projector.1.weight",
    "tower.mlp.1.weight": "mlp.1.weight",
}


@pytest.mark.parametrize("name", OURS)
def test_the_most_parts_that_fit_count(name: str) -> None:
    assert namer(NAMES)(name) == OURS[name]


def test_a_name_that_is_not_known_may_stay() -> None:
    assert namer(NAMES, stays=True)("other.norm.weight") == "other.norm.weight"
    assert namer(NAMES, stays=True)("tower.buffer") is None


def test_a_beginning_is_one_of_whole_parts() -> None:
    begins = beginning(NAMES)
    assert begins.match("model.tower.anything")
    assert begins.match("tower")
    assert not begins.match("towers.norm")
    assert not begins.match("model.model.tower")


TABLES: dict[str, TowerNames] = {}
for each in (*VISION_FAMILIES.values(), *AUDIO_FAMILIES.values()):
    TABLES[f"{each.PART} of {each.name}"] = each.hub_names
for kind in (*KINDS.values(), *EARS.values()):
    TABLES[f"{type(kind).__name__} {kind.name}"] = kind.names


@pytest.mark.parametrize("table", TABLES)
def test_a_familys_names_lead_back(table: str) -> None:
    """A tensor of ours that is lacking is called as in some file, which is read as that tensor."""
    names = TABLES[table]
    ours_of = namer(names)
    assert any(ours is not None for ours in names.values())
    for key in names:
        theirs = f"{key.replace('*', '7')}.weight"
        ours = ours_of(theirs)
        if ours is not None:
            found = file_names(ours, names)
            assert {ours_of(each) for each in found} == {ours}, (theirs, ours)


def test_every_family_has_names() -> None:
    families: list[TowerFamily] = [*VISION_FAMILIES.values(), *AUDIO_FAMILIES.values()]
    assert not [each.name for each in families if not each.hub_names]
