"""The features of a runner: their order, and that a step asks only those that answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.protocol.to_worker import Plan, Save
from penstock_worker.steps.feature import StepFeature, StepFeatures


class Taking(StepFeature):
    """Writes down when it is asked."""

    name = "notes"

    def __init__(self, notes: list[str], mark: str = "") -> None:
        self.notes = notes
        self.mark = mark

    def take(self, plan: Plan) -> None:
        self.notes.append(f"take {self.mark}")

    def reset(self) -> None:
        self.notes.append(f"reset {self.mark}")

    def close(self) -> None:
        self.notes.append(f"close {self.mark}")


class Saving(Taking):
    def before_copies(self, saves: Sequence[Save], overwritten: Iterable[int]) -> None:
        self.notes.append(f"save {self.mark}")


def test_a_hook_has_only_the_features_that_override_it() -> None:
    features = StepFeatures([first := Saving([]), second := Taking([])])
    assert features.taking == (first, second)
    assert features.saving == (first,)
    assert not features.encoding + features.ordering + features.computing + features.limiting
    assert not features.extending + features.keeping + features.undoing


def test_a_feature_is_found_by_its_class() -> None:
    features = StepFeatures([Taking([]), saving := Saving([])])
    assert features.find(Saving) is saving
    assert StepFeatures().find(Taking) is None


def test_features_are_asked_in_their_order_and_closed_in_the_opposite_one() -> None:
    notes: list[str] = []
    features = StepFeatures([Taking(notes, "1"), Taking(notes, "2")])
    features.reset()
    features.close()
    assert notes == ["reset 1", "reset 2", "close 2", "close 1"]
