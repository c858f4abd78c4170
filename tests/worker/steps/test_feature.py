"""The features of a runner: their order, that a step asks only those that answer, and what becomes
of a request for one that is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from penstock.model.prepared_model import GenerationDefaults
from penstock.model.speculation import SpeculativeConfig
from penstock.model.transcription_facts import Alignment
from penstock.protocol.common import Grammar, LogitsAdjustments, Pooling
from penstock.protocol.from_worker import (
    AdapterFailed,
    FetchedKV,
    FoundKV,
    FromWorker,
    GrammarFailed,
    MediaFailed,
    Result,
)
from penstock.protocol.to_worker import (
    Copy,
    FetchKV,
    LookUpKV,
    NewSequence,
    Plan,
    Save,
    SaveKV,
    SlotWork,
    Stop,
    ToWorker,
)
from penstock.protocol.worker_resources import (
    CompileGrammar,
    DropAdapter,
    DropGrammar,
    DropMedia,
    LoadAdapter,
    LoadMedia,
    LoadMediaChunk,
)
from penstock_worker.batch.inputs import Drafts
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.interface import Batch
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.loading.load import features_of, load
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.place import RankPlace
from penstock_worker.sampler.memory import SamplerMemory
from penstock_worker.speculation.drafting import Proposer
from penstock_worker.steps.feature import Outcomes, StepFeature, StepFeatures
from penstock_worker.steps.runner import StepRunner
from tests.worker.checkpoints import tiny_setup
from tests.worker.driver import GREEDY, make_runner
from tests.worker.grammar.grammar_tools import Evens

ORDER = [
    "stored KV",
    "states",
    "media",
    "hand over",
    "adapters",
    "grammars",
    "sampler's memory",
    "drafting",
    "word times",
]


class Noting(StepFeature):
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


class Saving(Noting):
    def before_copies(self, saves: Sequence[Save], overwritten: Iterable[int]) -> None:
        self.notes.append(f"save {self.mark}")


class Named(StepFeature):
    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]


class Forward:
    """Shows its attention to an encoder's output."""

    def crossing(self, batch: object) -> None:
        raise AssertionError("nothing is computed")


def test_a_hook_has_only_the_features_that_override_it() -> None:
    features = StepFeatures([first := Saving([]), second := Noting([])])
    assert features.taking == (first, second)
    assert features.saving == (first,)
    assert not features.encoding + features.ordering + features.computing + features.limiting
    assert not features.extending + features.keeping + features.undoing


def test_a_feature_is_found_by_its_class() -> None:
    features = StepFeatures([Noting([]), saving := Saving([])])
    assert features.find(Saving) is saving
    assert StepFeatures().find(Noting) is None


def test_features_are_asked_in_their_order_and_closed_in_the_opposite_one() -> None:
    notes: list[str] = []
    features = StepFeatures([Noting(notes, "1"), Noting(notes, "2")])
    features.reset()
    features.close()
    assert notes == ["reset 1", "reset 2", "close 2", "close 1"]


def all_features(monkeypatch: pytest.MonkeyPatch, place: RankPlace) -> list[str]:
    """Names of the features of a rank of a model that has all."""
    monkeypatch.setattr(
        "penstock_worker.loading.load.step_adapters", lambda *parts: Named("adapters")
    )
    transcription = SimpleNamespace(alignment=Alignment(heads=((0, 0),)))
    prepared: Any = SimpleNamespace(
        media=SimpleNamespace(transcription=transcription), generation=GenerationDefaults()
    )
    recipe: Any = SimpleNamespace(
        states=Named("states"), media=Named("media"), hand_over=Named("hand over"), adapters=None
    )
    setup: Any = SimpleNamespace(
        speculation=SpeculativeConfig(method="ngram", num_speculative_tokens=2)
    )
    slots = Slots(SlotBounds(slots=1, blocks=1, block_size=1, vocab=8, tokens=1))
    stored: Any = Named("stored KV")
    grammars = SlotGrammars(Evens(8))
    found = features_of(
        prepared,
        setup,
        recipe,
        place,
        slots,
        Forward(),  # type: ignore[arg-type]
        stored=stored,
        grammars=grammars,
        memory=SamplerMemory(SimpleNamespace(), slots),  # type: ignore[arg-type]
        model=Proposer(),
    )
    grammars.close()
    return [each.name for each in found]


def test_all_features_have_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_features(monkeypatch, RankPlace()) == ORDER


def test_an_earlier_stage_has_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_features(monkeypatch, RankPlace(1, 2, 0)) == ORDER[:6]


def test_a_model_has_only_the_features_that_it_is_loaded_with(tmp_path: Path) -> None:
    plain = tiny_setup(tmp_path)
    more = msgspec.structs.replace(
        plain, max_loras=1, max_lora_rank=8, disk_kv_dir=str(tmp_path / "kv"), disk_kv_bytes=1 << 24
    )
    for setup, expected in ((plain, ["grammars"]), (more, ["stored KV", "adapters", "grammars"])):
        loaded = load(setup)
        loaded.runner.close()
        assert [each.name for each in loaded.runner.features.all] == expected


class Everywhere(StepFeature):
    """A feature that overrides every hook of a step, and writes down which is called."""

    name = "everywhere"

    def __init__(self) -> None:
        self.called: list[str] = []

    def before_copies(self, saves: Sequence[Save], overwritten: Iterable[int]) -> None:
        self.called.append("before_copies")

    def take(self, plan: Plan) -> None:
        self.called.append("take")

    def encode(self, plan: Plan) -> bool:
        self.called.append("encode")
        return False

    def ordered(self, scheduled: list[SlotWork]) -> list[SlotWork]:
        self.called.append("ordered")
        return scheduled

    def compute(self, scheduled: list[SlotWork], outcomes: Outcomes) -> list[SlotWork]:
        self.called.append("compute")
        return scheduled

    def fitting(self, scheduled: Sequence[SlotWork], drafts: Drafts) -> Drafts:
        self.called.append("fitting")
        return drafts

    def extend(self, batch: Batch, scheduled: Sequence[SlotWork], slots: Slots) -> Batch:
        self.called.append("extend")
        return batch

    def keep(self, number: int, tokens: int) -> None:
        self.called.append(f"keep {tokens}")

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        self.called.append("undo")


class Wrong(Proposer):
    """Drafts what the model is told never to say."""

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        return [[3][: work.draft] for work in scheduled]


def step_with(
    feature: StepFeature, model: DecoderModel, draft: int = 0
) -> tuple[StepRunner[Any], Plan]:
    """A runner with one more feature, and its first plan."""
    runner = make_runner(
        model, block_size=4, num_blocks=8, slots=4, proposer=lambda slots: Wrong(), more=[feature]
    )
    sampling = msgspec.structs.replace(
        GREEDY, adjustments=LogitsAdjustments(bias={3: -100.0}), logprobs=None
    )
    new = NewSequence(0, [5, 6, 7], 3, 0, sampling, [0, 1])
    return runner, Plan(1, 0, [], [new], [SlotWork(0, 0, 3, draft=draft)])


BEFORE = ["before_copies", "take", "encode", "ordered", "compute"]


def test_a_step_calls_each_hook_once_in_the_order_in_which_they_stand(
    tiny_models: dict[torch.dtype, DecoderModel],
) -> None:
    feature = Everywhere()
    runner, plan = step_with(feature, tiny_models[torch.float32], draft=1)
    runner.execute(plan)
    assert feature.called == [*BEFORE, "fitting", "extend", "keep 3"]
    stated = [name for name in vars(StepFeature) if name in vars(Everywhere)]
    assert [each.split()[0] for each in feature.called] == [
        name for name in stated if name not in ("__module__", "__doc__", "name", "undo")
    ]
    runner.close()


def test_a_step_without_drafts_asks_nobody_about_them(
    tiny_models: dict[torch.dtype, DecoderModel],
) -> None:
    feature = Everywhere()
    runner, plan = step_with(feature, tiny_models[torch.float32])
    runner.execute(plan)
    assert feature.called == [*BEFORE, "extend"]
    runner.close()


def test_a_launch_that_fails_is_undone(
    tiny_models: dict[torch.dtype, DecoderModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    feature = Everywhere()
    runner, plan = step_with(feature, tiny_models[torch.float32])

    def failing(*arguments: object) -> None:
        raise ValueError("this pass fails")

    monkeypatch.setattr(runner._kind._forward, "logits", failing)
    (result,) = runner.execute(plan).slots
    assert "this pass fails" in str(result.error)
    assert feature.called == [*BEFORE, "extend", "undo"]
    runner.close()


# ---- what is missing


@pytest.fixture
def plain(tmp_path: Path) -> Iterable[StepRunner[Any]]:
    """Has grammars and nothing else."""
    loaded = load(tiny_setup(tmp_path))
    yield loaded.runner
    loaded.runner.close()


def answers_of(runner: StepRunner[Any], message: ToWorker) -> list[FromWorker]:
    """What a worker says to a message that its session's thread or else its main thread takes."""
    answers: list[FromWorker] = []
    if not runner.features.hear(message, (), answers.append):
        runner.receive(message, answers.append)
    return answers


REFUSALS: list[tuple[ToWorker, list[FromWorker]]] = [
    (
        LoadMedia("a", "image", 1, 1, ""),
        [MediaFailed("a", "this worker has no media", "unfit")],
    ),
    (LoadMediaChunk("a", 0), []),
    (DropMedia("a"), []),
    (LoadAdapter("b", "/b"), [AdapterFailed("b", "this worker has no adapters")]),
    (DropAdapter("b"), []),
    (LookUpKV(3, [b"k"]), [FoundKV(3, 0)]),
    (FetchKV(4, [b"k"], [1]), [FetchedKV(4, 0)]),
    (SaveKV([Save(b"k", 1)]), []),
]


@pytest.mark.parametrize(
    ("message", "answers"), REFUSALS, ids=[type(each).__name__ for each, _ in REFUSALS]
)
def test_a_message_for_a_missing_feature_is_refused_by_its_name(
    plain: StepRunner[Any], message: ToWorker, answers: list[FromWorker]
) -> None:
    assert answers_of(plain, message) == answers


def test_a_runner_without_grammars_refuses_them() -> None:
    from penstock_worker.steps.absent import refusal

    asked = CompileGrammar(5, Grammar("lark", "x"))
    assert refusal(asked) == GrammarFailed(5, "this worker has no grammars")
    assert refusal(DropGrammar(5)) is None


def test_what_is_no_features_message_is_an_error(plain: StepRunner[Any]) -> None:
    with pytest.raises(RuntimeError, match="Stop was not expected"):
        answers_of(plain, Stop())


def test_blocks_are_copied_for_a_fetch_that_is_refused(plain: StepRunner[Any]) -> None:
    (part,) = plain._kind._forward.kv_blocks()[:1]
    part[1] = 7
    answers_of(plain, FetchKV(4, [b"k"], [3], copies=[Copy("device", 1, 2)]))
    assert (part[2] == 7).all()


def admitted(runner: StepRunner[Any], **asked: Any) -> Result:
    """The step in which a sequence is admitted that asks for so much, and one that doesn't."""
    new = [NewSequence(slot, [1, 2], 2, 0, GREEDY, [slot]) for slot in (0, 1)]
    new[0] = msgspec.structs.replace(new[0], **asked)
    return runner.execute(Plan(1, 0, [], new, [SlotWork(slot, 0, 2) for slot in (0, 1)]))


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"adapter": "b"}, "this worker has no adapters"),
        ({"pooling": Pooling("align")}, "this worker has no word times"),
    ],
    ids=["adapter", "pooling"],
)
def test_a_sequence_that_asks_for_a_missing_feature_fails_alone(
    plain: StepRunner[Any], asked: dict[str, Any], error: str
) -> None:
    first, second = admitted(plain, **asked).slots
    assert first.error == error
    assert second.error is None
    assert second.token is not None
