"""Every form of a tower or projector that a model may have is computed by a class."""

from __future__ import annotations

from types import ModuleType
from typing import get_args

import pytest

from penstock.errors import UnsupportedModel
from penstock.model.audio_spec import SoundTowerSpec
from penstock.model.projector_spec import Projector
from penstock.model.sound_projector_spec import SoundProjectorSpec
from penstock_worker.media import sound_projector, sound_projectors, sound_tower, towers
from penstock_worker.vision import projector, projectors
from penstock_worker.vision.projector import class_of

PACKAGES = [
    (Projector, projector._FORMS, projectors, projector.Projector),
    (SoundTowerSpec, sound_tower._FORMS, towers, sound_tower.HearingTower),
    (SoundProjectorSpec, sound_projector._FORMS, sound_projectors, sound_projector.SoundProjector),
]


@pytest.mark.parametrize(
    ("form", "known", "package", "base"),
    [(form, *where) for union, *where in PACKAGES for form in get_args(union)],
)
def test_each_form_has_a_class(
    form: type, known: dict[type, type], package: ModuleType, base: type
) -> None:
    assert issubclass(class_of(form, known, package), base)


@pytest.mark.parametrize(("known", "package"), [each[1:3] for each in PACKAGES])
def test_a_form_without_a_module_is_named(known: dict[type, type], package: ModuleType) -> None:
    class Unwritten:
        pass

    with pytest.raises(UnsupportedModel, match=rf"{package.__name__} computes a Unwritten"):
        class_of(Unwritten, known, package)
