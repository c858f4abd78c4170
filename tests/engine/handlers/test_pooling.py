"""Pooling models in the engine core: whole inputs, one terminal, wrong kinds."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from penstock.config.settings import EngineConfig, ModelSettings, SchedulerSettings
from penstock.errors import StartupError
from penstock.families.bert_reading import bert_encoder
from penstock.model.pooling_config import LateInteraction, PoolingConfig, SparseWeights
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION
from penstock.protocol.common import Pooling, Stopping, TokenSampling, Vectors
from penstock.protocol.from_frontend import Abort, FromFrontend, Hello, OpenSequence, Submit
from penstock.protocol.from_worker import FromWorker, Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_frontend import Accepted, Outputs, Pooled, Rejected, ToFrontend, Welcome
from penstock.protocol.to_worker import NewSequence, Plan, Setup, ToWorker
from penstock_engine.core import EngineCore
from penstock_engine.facts import EngineFacts
from penstock_engine.policies.pace import UNKNOWN
from penstock_engine.policies.registry import known_policies
from penstock_engine.record.restoring import restore
from penstock_engine.record.snapshot import snapshot
from tests.engine.small_facts import facts as generating_facts
from tests.engine.walked_harness import POLICIES
from tests.engine.wire import over_the_wire

FRONT = b"front".ljust(16, b".")
VOCAB = 50
LONGEST = 16


def pooling_facts(
    longest: int = LONGEST, pooling: dict[str, Any] | None = None, **scheduler: Any
) -> EngineFacts:
    model = PreparedModel(
        format_version=FORMAT_VERSION,
        name="vectors",
        source="vectors",
        config=bert_encoder(
            "bert",
            vocab_size=VOCAB,
            hidden_size=2,
            intermediate_size=4,
            num_layers=1,
            num_heads=1,
            max_position=longest,
        ),
        generation=GenerationDefaults(),
        weights=WeightFiles(format="safetensors", files=("/nowhere",), dtype="float32"),
        digest="0" * 64,
        has_chat_template=False,
        pooling=PoolingConfig(mode="mean", normalize=False, size=2, **pooling or {}),
    )
    settings: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 20, **scheduler}
    config = EngineConfig(
        model=ModelSettings(model="vectors"), scheduler=SchedulerSettings(**settings)
    )
    return EngineFacts(
        config=config, model=model, folder="/m", tokenizer=b"{}", template=b"", boot="b", created=1
    )


def meant(prompt: list[int]) -> Vectors:
    """The model: a pure function of the input."""
    return Vectors((2,), struct.pack("<2f", sum(prompt), len(prompt)))


class Bench:
    """A core, one front end and a worker; checks each plan and each answer."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.meant = meant
        self.core = EngineCore(facts)
        self.now = 1.0
        self.prompts: dict[int, list[int]] = {}
        self.accepted: set[int] = set()
        self.answers: dict[int, Any] = {}
        self.rejected: dict[int, Rejected] = {}
        self.welcome: Welcome | None = None
        self.plans: list[Plan] = []
        self.slots: dict[int, NewSequence] = {}
        self.sessions = 0
        self.worker = b""
        self.dropped: list[str] = []
        self.core.frontend_opened(FRONT, Hello([2], "t", 1), self.now)
        self.settle()

    def settle(self) -> None:
        effects = self.core.step(self.now)
        self.core.check()
        for session, message, _ in effects.to_workers:
            message = over_the_wire(message, ToWorker)
            if session == self.worker and isinstance(message, Setup):
                self.setup = message
            elif session == self.worker and isinstance(message, Plan):
                self.plans.append(message)
        for _, message, _ in effects.to_frontends:
            self.hear(over_the_wire(message, ToFrontend))
        for session, reason in effects.end_workers:
            self.dropped.append(reason)
            self.core.worker_ended(session, reason, self.now)

    def hear(self, message: Any) -> None:
        match message:
            case Welcome():
                self.welcome = message
            case Accepted(request):
                self.accepted.add(request)
            case Rejected(request):
                self.rejected[request] = message
            case Pooled(request):
                assert request in self.accepted
                assert request not in self.answers, "two terminals"
                self.answers[request] = message.vectors
                assert message.vectors == self.meant(self.prompts[request])
            case Outputs(outputs):
                for output in outputs:
                    assert output.request not in self.answers, "two terminals"
                    assert output.finish is not None
                    self.answers[output.request] = output

    def start_worker(self) -> None:
        self.plans, self.slots = [], {}
        self.sessions += 1
        self.worker = self.sessions.to_bytes(16, "big")
        self.core.worker_opened(self.worker, WorkerHello([2], 0, 2), self.now)
        self.settle()
        ready = Ready(
            num_kv_blocks=3 * self.setup.max_num_seqs, device="cpu", fingerprint="f", load_seconds=0
        )
        self.says(ready)

    def says(self, message: FromWorker) -> None:
        message = over_the_wire(message, FromWorker)
        self.core.worker_received(self.worker, message, self.now)
        self.settle()

    def kill_worker(self) -> None:
        self.plans = []
        self.core.worker_ended(self.worker, "killed", self.now)
        self.settle()

    def submit(self, number: int, prompt: list[int], **fields: Any) -> None:
        self.prompts[number] = prompt
        submit = Submit(
            number,
            f"r{number}",
            prompt,
            [OpenSequence(0)],
            TokenSampling(0),
            Stopping(max_tokens=1, ignore_eos=True),
            **{"pooling": Pooling("embed"), **fields},
        )
        self.core.frontend_received(FRONT, over_the_wire(submit, FromFrontend), self.now)
        self.settle()

    def run_step(self, answer: Any = meant, seconds: float = 0.001) -> None:
        plan = self.plans.pop(0)
        for slot in plan.released:
            del self.slots[slot]
        for new in plan.admitted:
            assert new.pooling is not None
            self.slots[new.slot] = new
        budget = self.facts.config.scheduler.max_num_batched_tokens
        assert 0 < sum(work.count for work in plan.work) <= budget
        held = [block for new in self.slots.values() for block in new.blocks]
        assert len(held) == len(set(held)), "two sequences share what they hold"
        results = []
        for work in plan.work:
            tokens = self.slots[work.slot].tokens
            assert (work.start, work.count) == (0, len(tokens)), "an input is split"
            results.append(SlotResult(work.slot, 0, vectors=answer(tokens)))
        self.says(Result(plan.step, results, seconds))

    def run(self) -> None:
        for _ in range(1000):
            if not self.plans:
                assert not self.core.state.scheduling.has_work
                return
            self.run_step()
        raise AssertionError("no end")


@pytest.fixture
def bench() -> Bench:
    made = Bench(pooling_facts())
    made.start_worker()
    return made


def test_welcome_says_what_the_model_does(bench: Bench) -> None:
    assert bench.welcome is not None
    assert bench.welcome.pooling_tasks == ("embed", "token_embed")
    assert bench.welcome.limits.max_model_len == LONGEST
    assert bench.setup.pooling == bench.welcome.pooling


def test_the_longest_input_is_taken_and_a_longer_one_is_not(bench: Bench) -> None:
    bench.submit(1, [3] * LONGEST)
    bench.submit(2, [3] * (LONGEST + 1))
    bench.run()
    assert set(bench.answers) == {1}
    assert "has 17 tokens; this model takes at most 16" in bench.rejected[2].message


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("steps", [1, 2])
def test_any_order_of_events_gives_each_input_its_one_answer(policy: str, steps: int) -> None:
    """Inputs are never split, whatever each tenant's share of a step; workers die now and then."""
    for seed in range(8):
        choose = random.Random(seed)
        bench = Bench(pooling_facts(scheduling_policy=policy, max_steps_in_flight=steps))
        bench.start_worker()
        number, aborted, kills = 0, set(), 0
        for _ in range(150):
            bench.now += 0.01
            act = choose.random()
            if act < 0.55:
                number += 1
                fields: dict[str, Any] = {"tenant": choose.choice(["", "a", "b", "c"])}
                if known_policies()[policy].ages:
                    fields["priority"] = choose.randrange(-2, 3)
                size = choose.choice([1, 2, 7, LONGEST])
                bench.submit(number, [choose.randrange(VOCAB) for _ in range(size)], **fields)
            elif act < 0.93 and bench.plans:
                bench.run_step()
            elif act < 0.97 and number:
                aborted.add(target := choose.randrange(1, number + 1))
                bench.core.frontend_received(FRONT, Abort(target), bench.now)
                bench.settle()
            elif act > 0.985 and kills < 1:
                kills += 1
                bench.kill_worker()
                bench.start_worker()
        bench.run()
        assert set(bench.answers) == set(range(1, number + 1))
        failed = {n for n, answer in bench.answers.items() if not isinstance(answer, Vectors)}
        assert failed <= aborted


@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_input_is_computed_however_slow_the_first_steps_were(policy: str) -> None:
    """Steps are kept short by what a token takes, and an input can't be taken in parts."""
    long = UNKNOWN + 36
    facts = pooling_facts(long, scheduling_policy=policy, max_num_batched_tokens=2 * long)
    bench = Bench(facts)
    bench.start_worker()
    bench.submit(1, [1] * 20)
    bench.run_step(seconds=60.0)
    for number in (2, 3, 4):
        bench.submit(number, [number] * (long if number < 4 else 3), tenant=str(number % 2))
    bench.run_step(seconds=60.0)
    bench.run()
    assert set(bench.answers) == {1, 2, 3, 4}


def test_a_dead_workers_inputs_are_computed_again_and_poison_ends(bench: Bench) -> None:
    bench.submit(1, [1, 2, 3])
    bench.kill_worker()
    assert not bench.answers
    bench.start_worker()
    bench.run()
    assert bench.answers[1] == meant([1, 2, 3])
    bench.submit(2, [4])
    for _ in range(2):
        bench.kill_worker()
        bench.start_worker()
    assert bench.answers[2].finish == "error"
    assert "died 2 times" in bench.answers[2].error


BAD = {
    "no vectors": None,
    "another size": Vectors((3,), bytes(12)),
    "too few bytes": Vectors((2,), bytes(4)),
    "token vectors": Vectors((1, 2), bytes(8)),
    "sparse vectors": Vectors((2,), bytes(8), struct.pack("<2i", 0, 1)),
}


def _sparse(numbers: int, *places: int) -> Vectors:
    return Vectors((numbers,), bytes(4 * numbers), struct.pack(f"<{len(places)}i", *places))


BAD_WEIGHTS = {
    "falls": _sparse(2, 7, 3),
    "twice": _sparse(2, 7, 7),
    "beyond": _sparse(2, 7, VOCAB),
    "before": _sparse(2, -1, 3),
    "too few": _sparse(2, 7),
    "none": _sparse(2),
    "rows": Vectors((1, 1), bytes(4), struct.pack("<i", 3)),
}
GOOD_WEIGHTS = [_sparse(2, 0, VOCAB - 1), _sparse(1, 5), _sparse(0)]


def _sparse_bench() -> Bench:
    facts = pooling_facts(pooling={"sparse": SparseWeights(size=VOCAB)})
    assert facts.welcome(1, 100).pooling_tasks == ("embed_sparse",)
    bench = Bench(facts)
    bench.start_worker()
    return bench


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_weights_that_do_not_fit_end_the_workers_session(case: str) -> None:
    bench = _sparse_bench()
    bench.submit(1, [5], pooling=Pooling("embed_sparse"))
    bench.run_step(lambda _: BAD_WEIGHTS[case])
    assert "invalid" in bench.dropped[0]
    assert not bench.answers


@pytest.mark.parametrize("case", range(len(GOOD_WEIGHTS)))
def test_weights_are_passed_on(case: int) -> None:
    bench = _sparse_bench()
    bench.submit(1, [5], pooling=Pooling("embed_sparse"))
    bench.meant = lambda _: GOOD_WEIGHTS[case]
    bench.run_step(bench.meant)
    assert bench.answers[1] == GOOD_WEIGHTS[case]


def test_hidden_tokens_are_within_the_input() -> None:
    late = LateInteraction(dense=(), size=2, query_length=8)
    bench = Bench(pooling_facts(pooling={"late": late}))
    bench.start_worker()
    bench.submit(1, [5, 6], pooling=Pooling("token_embed", seen=3))
    assert "tokens that are seen" in bench.rejected[1].message
    bench.submit(2, [5, 6], pooling=Pooling("token_embed", seen=2))
    bench.meant = lambda _: Vectors((2, 2), bytes(16))
    bench.run_step(bench.meant)
    assert 2 in bench.answers


def test_vectors_of_a_step_fit_into_a_message() -> None:
    late = LateInteraction(dense=(), size=1 << 20)
    facts = pooling_facts(pooling={"late": late})
    with pytest.raises(StartupError, match="lower max_num_batched_tokens"):
        facts.welcome(1, 100)


@pytest.mark.parametrize("case", BAD)
def test_vectors_that_do_not_fit_end_the_workers_session(bench: Bench, case: str) -> None:
    bench.submit(1, [5])
    bench.run_step(lambda _: BAD[case])
    assert "vectors" in bench.dropped[0]
    assert not bench.answers
    bench.start_worker()
    bench.run()
    assert bench.answers[1] == meant([5])


WRONG = {
    "text": ({"pooling": None}, "is a pooling model; it generates no text"),
    "classes": ({"pooling": Pooling("classify")}, "this model supports embed, token_embed"),
    "types": ({"pooling": Pooling("embed", b"\0")}, "1 token types for 2 tokens"),
    "hidden": ({"pooling": Pooling("embed", seen=1)}, "tokens of this model see all others"),
    "dimensions": ({"pooling": Pooling("embed", dimensions=3)}, "must lie in 1 to 2, not 3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_the_model_cannot_do_is_refused(bench: Bench, case: str) -> None:
    fields, reason = WRONG[case]
    bench.submit(1, [5, 6], **fields)
    assert bench.rejected[1].code == "invalid"
    assert reason in bench.rejected[1].message


def test_a_generating_model_gives_no_vectors() -> None:
    bench = Bench(generating_facts())
    bench.submit(1, [5])
    assert "it can't return vectors" in bench.rejected[1].message


def test_a_deadline_ends_it(bench: Bench) -> None:
    bench.kill_worker()
    bench.submit(1, [5], time_left_ms=500)
    bench.now += 1
    bench.settle()
    assert bench.answers[1].finish == "timeout"


def test_a_snapshot_holds_a_pooling_core(bench: Bench) -> None:
    bench.submit(1, [5], pooling=Pooling("embed", b"\1", dimensions=1))
    twin = restore(snapshot(bench.core))
    assert next(twin.state.frontends.requests()).pooling == Pooling("embed", b"\1", dimensions=1)
