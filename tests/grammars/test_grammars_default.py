"""llguidance and the default model, on the kernels that serve it: outputs conform, whatever else
goes on; a grammar whose masks grow slow is deferred, then fails, and holds nobody up."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import Grammar, TokenSampling
from penstock.protocol.from_worker import GrammarFailed, GrammarReady
from penstock.text.tokenizer import Tokenizer
from penstock_grammars.compiler import Compiler
from penstock_worker.grammar.errors import GrammarError
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.grammar.interface import Compile
from penstock_worker.speculation.choose import ForcedTokens
from penstock_worker.speculation.drafting import Proposer
from tests.grammars.default_grammars import (
    AMBIGUOUS,
    BAD,
    BOUNDED,
    CHOICES,
    GBNF,
    GRAMMARS,
    HOSTILE,
    NEWER,
    PERSON,
    TAG,
    schema,
)
from tests.thinning import part
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Driver, Job, make_runner
from tests.worker.grammar.grammar_tools import compile_now

pytestmark = pytest.mark.timeout(900)

PROMPT = "Describe a person: "


def conforms(number: int, text: str) -> bool:
    """Whether the text conforms, by none of the code under test."""
    if number == 1:
        person = json.loads(text)
        assert list(person) == list(PERSON["properties"])
        assert len(person["name"]) <= 20
        assert type(person["age"]) is int
        assert 0 <= person["age"] <= 150
        assert person["colour"] in ("red", "green")
        assert 1 <= len(person["tags"]) <= 3
        assert {type(tag) for tag in person["tags"]} == {bool}
        return True
    if number == 2:
        return re.fullmatch(GRAMMARS[2].text, text) is not None
    if number == 3:
        return text in CHOICES
    if number == 4:
        return re.fullmatch(r"\d{1,3}(\+\d{1,3}){2,4}=\d{1,3}", text) is not None
    return isinstance(json.loads(text), dict)


@pytest.fixture(scope="module")
def compiler(default_folder: Path, default_model: PreparedModel) -> Iterator[Compiler]:
    eos = default_model.generation.eos_token_ids
    made = Compiler(default_folder / "tokenizer.json", default_model.config.vocab_size, eos)
    yield made
    made.close()


@pytest.fixture(scope="module")
def compiled(compiler: Compiler) -> Compile:
    """Compiles each grammar once: a Compiler has a process for each thread that asks it, and these
    are new for each SlotGrammars."""
    return functools.cache(compiler)


@pytest.fixture(scope="module")
def grammars(compiler: Compiler) -> Iterator[SlotGrammars]:
    """One whose slots stay empty: it compiles, in the threads that it has."""
    made = SlotGrammars(compiler, budget=1.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(default_model: PreparedModel) -> CPUModel:
    return CPUModel(default_model.config, default_model.weights, "auto")


def jobs(tokenizer: Tokenizer, eos: tuple[int, ...]) -> list[Job]:
    ids = tokenizer.encode(PROMPT)
    made = [
        Job(ids, 120, TokenSampling(seed, temperature=1.0, logprobs=2), grammar=number, ends=eos)
        for number in GRAMMARS
        if number != 5
        for seed in range(1, 1 + part(2, 1 / 2))
    ]
    greedy = TokenSampling(0, temperature=0.0, logprobs=2)
    some = (1, 2, 3, 4)[: part(4, 1 / 4)]
    made += [Job(ids, 120, greedy, grammar=number, ends=eos) for number in some]
    return [*made, Job(ids, 40, greedy)]


class Patient(SlotGrammars):
    """Waits for what is forced."""

    def forced(self, slot: int, seconds: float = 0.0) -> list[int]:
        return super().forced(slot, 60.0)


def run(
    compiled: Compile, model: CPUModel, work: list[Job], patience: float, **options: int
) -> list[Job]:
    """Drafts what grammars force, where `draft` allows it."""
    grammars = Patient(compiled, budget=patience)
    for number, definition in GRAMMARS.items():
        assert compile_now(grammars, number, definition) is None
    runner = make_runner(
        model,
        grammars=grammars,
        threads=2,
        proposer=lambda slots: ForcedTokens(grammars, Proposer(), 8),
    )
    try:
        return Driver(runner, **options).run(work)
    finally:
        runner.close()


def test_outputs_conform_and_do_not_depend_on_the_company(
    compiled: Compile,
    model: CPUModel,
    default_model: PreparedModel,
    default_tokenizer: Tokenizer,
) -> None:
    eos = default_model.generation.eos_token_ids
    alone = [run(compiled, model, [job], 5.0)[0] for job in jobs(default_tokenizer, eos)]
    for job in alone:
        assert job.error is None
        if job.grammar is not None:
            assert job.tokens[-1] in eos, default_tokenizer.decode(job.tokens)
            assert conforms(job.grammar, default_tokenizer.decode(job.tokens[:-1]))
    crowded = run(
        compiled, model, jobs(default_tokenizer, eos), 0.0, budget=24, preempt_every=3, seed=3
    )
    assert sum(job.preempted for job in crowded) > 10
    for one, other in zip(alone, crowded, strict=True):
        assert other.error is None
        assert other.tokens == one.tokens
        assert other.logprobs == one.logprobs


def test_what_a_grammar_forces_is_drafted(
    compiled: Compile,
    model: CPUModel,
    default_model: PreparedModel,
    default_tokenizer: Tokenizer,
) -> None:
    eos = default_model.generation.eos_token_ids
    ids = default_tokenizer.encode(PROMPT)
    greedy = TokenSampling(0, temperature=0.0, logprobs=2)

    def person() -> list[Job]:
        return [Job(ids, 120, greedy, grammar=1, ends=eos)]

    [alone] = run(compiled, model, person(), 60.0)
    [found] = run(compiled, model, person(), 60.0, draft=8)
    assert (found.tokens, found.logprobs) == (alone.tokens, alone.logprobs)
    assert found.kept == found.drafted >= 5  # The names of the properties, and more.
    assert found.steps == alone.steps - found.kept


def test_any_json_object(compiled: Compile, model: CPUModel, default_tokenizer: Tokenizer) -> None:
    ids = default_tokenizer.encode('As JSON, {"a": 1}: ')
    job = Job(ids, 60, TokenSampling(0, temperature=0.0), grammar=5, ends=(2,))
    run(compiled, model, [job], 5.0)
    assert job.tokens[-1] == 2
    assert conforms(5, default_tokenizer.decode(job.tokens[:-1]))


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_be_compiled_is_explained(grammars: SlotGrammars, words: str) -> None:
    reason = compile_now(grammars, 1, BAD[words])
    assert reason is not None
    assert words in reason
    assert len(reason) <= 500


def test_a_schema_that_admits_everything(grammars: SlotGrammars) -> None:
    assert compile_now(grammars, 1, Grammar("json_schema", "true")) is None


def test_a_schema_with_many_optional_properties(
    compiler: Compiler, default_tokenizer: Tokenizer
) -> None:
    """Each costs four ways of reading: 240 are within the limit, and more are refused at once,
    however they come to be in one object; any number may be required."""
    properties = {f"p{at}": {"type": "integer"} for at in range(400)}
    some = dict(list(properties.items())[:240])
    rest = dict(list(properties.items())[240:])
    closed = {"type": "object", "additionalProperties": False}
    matcher = compiler(schema(closed | {"properties": some})).matcher()
    matcher.advance(default_tokenizer.encode('{"p1": 5, "p7": 3, "p'))
    assert matcher.allowed().any()
    compiler(schema(closed | {"properties": properties, "required": list(properties)}))
    for wide, says in (
        ({"properties": properties}, "400 optional properties; at most 240"),
        ({"properties": {"a": {"items": {"properties": properties}}}}, "400 optional properties"),
        ({"allOf": [{"properties": some}, {"properties": rest}]}, "400 optional properties"),
    ):
        with pytest.raises(GrammarError, match=says):
            compiler(schema({"type": "object"} | wide))


@pytest.mark.parametrize("name", HOSTILE)
def test_what_takes_long_to_compile_is_refused_and_holds_nobody_up(
    compiler: Compiler, name: str
) -> None:
    """llguidance would take 40 s, or gigabytes. By this process's clock of the processor."""
    grammars = SlotGrammars(compiler, budget=1.0)
    assert compile_now(grammars, 1, GRAMMARS[2]) is None
    before = time.process_time()
    answers: queue.SimpleQueue[GrammarReady | GrammarFailed] = queue.SimpleQueue()
    grammars.compile(2, HOSTILE[name], answers.put)
    grammars.compile(3, GRAMMARS[4], answers.put)
    first, second = answers.get(timeout=400), answers.get(timeout=400)
    assert first == GrammarReady(3)
    assert isinstance(second, GrammarFailed)
    assert "takes more than 2 s" in second.reason
    assert time.process_time() - before < 2.0
    assert compile_now(grammars, 4, GRAMMARS[4]) is None  # Its process was started again.
    grammars.close()


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_hostile_is_compiled_within_the_bound_or_refused(
    compiler: Compiler, name: str
) -> None:
    before = time.process_time()
    with contextlib.suppress(GrammarError):
        compiler(BOUNDED[name]).matcher().allowed()
    assert time.process_time() - before < 4.0


@pytest.mark.parametrize(
    ("definition", "fits", "does_not"),
    [
        (Grammar("gbnf", GBNF), "- abc\n- d\n", "- 5"),
        (Grammar("structural_tag", json.dumps(TAG)), "So <f=a>17</f>, and <f=a>3</f>!", "<f=b"),
        (Grammar("structural_tag", json.dumps(TAG)), "no tag at all", "<f=a>x"),
        (
            Grammar("structural_tag", json.dumps(NEWER)),
            "<think>so<x></think>ya/bcb<g>one</g>;<g>one</g>",
            "<think></think>z",
        ),
    ],
)
def test_other_dialects(
    compiler: Compiler,
    default_tokenizer: Tokenizer,
    definition: Grammar,
    fits: str,
    does_not: str,
) -> None:
    matcher = compiler(definition).matcher()
    matcher.advance(default_tokenizer.encode(fits))
    assert matcher.allowed()[2]  # It may end here.
    with pytest.raises(GrammarError):
        compiler(definition).matcher().advance(default_tokenizer.encode(does_not))


def test_a_model_without_eos_cannot_end_a_grammar(default_folder: Path) -> None:
    compiler = Compiler(default_folder / "tokenizer.json", 49152, ())
    grammars = SlotGrammars(compiler, budget=1.0, end=compiler.close)
    assert "EOS" in compile_now(grammars, 1, GRAMMARS[2])
    grammars.close()


@pytest.mark.parametrize("text", ["<|im_end|>", "a <|im_start|> b", "<|endoftext|><|im_end|>."])
def test_a_text_that_spells_a_special_token_is_written_in_letters(
    compiled: Compile, default_model: PreparedModel, default_tokenizer: Tokenizer, text: str
) -> None:
    """Also what is forced: the token itself would end the answer, or break its grammar."""
    matcher = compiled(Grammar("json_schema", json.dumps({"const": text}))).matcher()
    special = [default_tokenizer.encode(word)[0] for word in ("<|im_start|>", "<|im_end|>")]
    written: list[int] = []
    while json.dumps(text) not in default_tokenizer.decode(written):
        tokens = matcher.forced()
        if not tokens:
            tokens = [int(matcher.allowed().argmax())]
        assert not {*tokens} & {*special, *default_model.generation.eos_token_ids}
        matcher.advance(tokens)
        written += tokens
        assert len(written) < 100


def test_an_ambiguous_grammar_is_deferred_then_fails_and_holds_nobody_up(
    compiled: Compile, model: CPUModel, default_tokenizer: Tokenizer
) -> None:
    """Every step gives the plain request its token; the other misses more and more of them."""
    ids = default_tokenizer.encode(PROMPT)
    wanted = part(300, 1 / 2)
    greedy = TokenSampling(0, temperature=0.0)
    [undisturbed] = run(compiled, model, [Job(ids, wanted, greedy)], 0.0)
    grammars = SlotGrammars(compiled, budget=0.002)
    assert compile_now(grammars, 1, AMBIGUOUS) is None
    driver = Driver(make_runner(model, grammars=grammars, threads=2))
    plain = Job(ids, wanted, greedy)
    slow = Job(ids, 400, TokenSampling(1, temperature=0.0), grammar=1)
    driver.run([plain, slow])
    driver.runner.close()
    assert plain.tokens == undisturbed.tokens
    assert plain.steps == undisturbed.steps == wanted
    assert slow.deferred > 20
    assert "continue to follow its grammar" in slow.error
    assert set(default_tokenizer.decode(slow.tokens)) <= {"a", "b"}
