"""The page of a machine: its texts, the work made of them, what fits into the time, and the page,
with scripted runners in the places of real libraries."""

from __future__ import annotations

import json
import random
import sys
import sysconfig
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from loadtest.machine import page
from loadtest.machine.__main__ import COMMAND, _document
from loadtest.machine.models import MODELS, requantise
from loadtest.machine.plan import Plan, fit
from loadtest.machine.tasks import WORKS, Chat, Sizes, Task, tasks
from loadtest.machine.texts import FOLLOW_UPS, KINDS, Texts
from loadtest.peers.library.systems import System
from loadtest.peers.library.work import Run
from loadtest.peers.random_gguf import SHAPES, write
from loadtest.peers.rounds import take_turns
from loadtest.peers.servers import default_model
from loadtest.report import ROOT
from loadtest.report.files import RESULTS, Document
from loadtest.roofline.cost import ModelCost
from loadtest.roofline.probe import Limits
from testing.quick_gguf import read_once

RUNNER = Path(__file__).with_name("scripted_runner.py")
TEXTS = Texts(lambda text, special: list(text.encode()))
"""A byte is a token."""
COST = ModelCost(layer_bytes=900, layer_macs=50, head_bytes=100, head_macs=10, kv_bytes=2)
LIMITS = Limits(2, 1e6, int8_ops_per_s=4e6, bf16_ops_per_s=None, block_int8_ops_per_s=2e6)


def small(*keys: str) -> list[Task]:
    return tasks(TEXTS, Sizes.SMALL, keys or WORKS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_has_the_wanted_tokens_and_another_seeds_differs_at_once(kind: str) -> None:
    prompts = [TEXTS.prompt(kind, 3000, random.Random(seed)) for seed in range(8)]
    assert {len(each) for each in prompts} == {3000}
    assert len({bytes(each[:200]) for each in prompts}) == 8


def test_code_is_that_of_the_standard_library() -> None:
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytes(TEXTS.prompt("code", 200, random.Random(5))).decode(errors="ignore")
    assert any(text in path.read_text() for path in folder.glob("*.py"))


def test_a_chats_question_is_about_a_text_of_the_documentation() -> None:
    text = bytes(TEXTS.prompt("chat", 900, random.Random(5))).decode(errors="ignore")
    head, body, end = text.partition("\n\n")[0], text.split("\n\n", 1)[1], "assistant\n"
    assert head.startswith("<|im_start|>user\n")
    assert text.endswith(end)
    said = body.partition("<|im_end|>")[0]
    assert any(said in path.read_text() for path in ROOT.glob("**/*.md"))


def test_every_work_has_a_name_of_its_own_and_a_row() -> None:
    found = tasks(TEXTS)
    rows = [row for task in found for row in task.figures]
    assert len(set(rows)) == len(rows)
    assert {task.key for task in found} == set(WORKS)


def test_a_long_prompts_call_gives_two_rows() -> None:
    (task,) = tasks(TEXTS, keys=["context"])
    run = Run(seconds=50.0, tokens=[[1] * 64], decode_s=9.0)
    assert list(task.rates(run).values()) == pytest.approx([63 / 9, 4096 / 41])
    assert task.fault(run) is None
    assert task.fault(Run(50.0, [[1] * 64])) == "no time between first and last token"
    assert task.fault(Run(50.0, [[1] * 63], 9.0)) == "1 outputs of [63] tokens instead of 1 of 64"


def test_each_turn_of_a_chat_goes_on_from_all_that_was_said() -> None:
    (chat,) = tasks(TEXTS, keys=["chat"])
    assert isinstance(chat, Chat)
    calls: list[list[int]] = []

    def call(prompts: list[list[int]], output_tokens: int) -> Run:
        calls.append(prompts[0])
        return Run(2.0, [[300 + len(calls)] * output_tokens], 1.0)

    run = chat.perform(call, "a seed")
    assert len(calls[0]) == 2048
    for number in range(1, len(calls)):
        before, now = calls[number - 1], calls[number]
        answer = [300 + number] * (1 if number == 1 else 64)
        asked = bytes(now[len(before) + len(answer) :]).decode()
        assert now[: len(before) + len(answer)] == [*before, *answer]
        assert FOLLOW_UPS[number - 1] in asked
    assert chat.fault(run) is None
    # The history's call isn't counted.
    assert list(chat.rates(run).values()) == pytest.approx([5 * 64 / 10])


def test_what_has_been_warm_is_not_warmed_again() -> None:
    calls: list[int] = []

    def call(prompts: list[list[int]], output_tokens: int) -> Run:
        calls.append(len(prompts))
        assert sum(map(len, prompts)) <= 512
        return Run(1.0, [[1] * output_tokens for _ in prompts])

    for task in tasks(TEXTS):
        task.warm_up(call)
    assert calls == [1, 8, 64]
    calls.clear()
    for task in tasks(TEXTS, keys=["chat", "prompts"]):
        task.warm_up(call)
    assert sorted(calls) == [1, 8]


def plan(path: Path, found: list[Task], *systems: System) -> Plan:
    return Plan("m", path, COST, found, list(systems), LIMITS)


def scripted(name: str, behaviour: str = "good") -> System:
    command = [sys.executable, str(RUNNER), "m.gguf", "1", behaviour]
    return System(name=name, version="1", command=command, start_timeout=100)


def test_what_does_not_fit_is_left_out_longest_first(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    made = plan(tmp_path / "m.gguf", tasks(TEXTS), scripted("penstock"))
    every, whole = list(made.tasks), made.seconds(2)
    longest = max(every, key=made.round_seconds)
    fit([made], 2, 0)
    assert made.tasks == every
    fit([made], 2, whole - 0.001)
    assert list(made.left_out) == [longest.name]
    assert made.tasks == [task for task in every if task is not longest]
    fit([made], 2, 0.001)
    assert made.tasks == []
    assert made.seconds(2) == 0


def test_a_slower_peer_takes_longer_and_more_machine_less(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    (task,) = small("prompts")
    ours, peer = (plan(tmp_path / "m.gguf", [task], scripted(n)) for n in ("penstock", "llamacpp"))
    assert ours.round_seconds(task) < peer.round_seconds(task)
    faster = replace(ours, limits=replace(LIMITS, read_bytes_per_s=1e7, int8_ops_per_s=4e7))
    assert faster.round_seconds(task) == pytest.approx(ours.round_seconds(task) / 10)


def document(tmp_path: Path, *systems: System) -> Document:
    found = small()
    *_, rounds = take_turns(systems, found, rounds=2, budget=1000, logs=tmp_path)
    rounds.limits = [LIMITS]
    made = {
        "command": "python -m loadtest.machine",
        "started": "2020-01-02T03:04:05",
        "machine": {"cpu": "a CPU", "cores": 2.0, "memory_bytes": 2**30, "python": "3.11"},
        "model": "m",
        "file": "m.gguf",
        "instruction_set": "avx512",
        "model_cost": COST.to_dict(),
        "works": [asdict(work) for task in found for work in task.works()],
        "left_out": {"64 streams": 130.0},
        "missing": {"openvino": "it is missing: install it"},
        **_document(rounds),
    }
    again: Document = json.loads(json.dumps(made))
    return again


def test_all_rows_of_all_systems_are_on_the_page(tmp_path: Path) -> None:
    found = document(
        tmp_path, scripted("penstock"), scripted("llamacpp"), scripted("vllm", "error")
    )
    text = page.text(found)
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    cells = {row[1]: row[2:] for row in rows if len(row) > 5}
    for work in (work for task in small() for work in task.works()):
        ours, peer, failed, drafts, ratio, _, limit, _, _, _ = cells[work.name]
        assert ours == peer
        assert ours.endswith("± 0 %")
        assert (failed, drafts, ratio) == ("failed", "–", "1.00")
        assert float(limit.replace(",", "")) > 0
    assert (
        "- Left out, for the time they would have taken: 64 streams (about 130 s a round)." in text
    )
    assert "- OpenVINO: it is missing: install it" in text
    assert any("ValueError: it went wrong" in line for line in page.failures(found))
    page.draw(tmp_path / "chart.png", {"m": found})
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_shares_are_of_the_machines_limit(tmp_path: Path) -> None:
    found = document(tmp_path, scripted("penstock"))
    work = next(work for task in small("prompts") for work in task.works())
    # 64 tokens with 50 multiply-adds each, and 10 for the last; 0.01 s until the first output.
    least = 2 * (64 * 50 + 10) / 4e6
    assert page.share(found, "penstock", work) == pytest.approx(least / 0.01)
    assert page.share(found, "penstock", work, blocks=True) == pytest.approx(2 * least / 0.01)
    assert page.share(found, "another", work) is None


@pytest.mark.slow
def test_a_model_in_q8_0_is_the_same_model(tmp_path: Path) -> None:
    shape = replace(SHAPES["dense"], layers=2, hidden=256, feed_forward=256)
    with read_once():
        write(tmp_path / "q4.gguf", shape, default_model(), "Q4_K_M")
        requantise(tmp_path / "q8.gguf", tmp_path / "q4.gguf")
        before, after = (gguf.GGUFReader(tmp_path / name) for name in ("q4.gguf", "q8.gguf"))
    named = {name for name in before.fields if not name.startswith("GGUF.")}
    assert named | {"general.file_type"} == {n for n in after.fields if not n.startswith("GGUF.")}
    for name in named:
        assert before.fields[name].contents() == after.fields[name].contents()
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert old.name == new.name
        assert list(old.shape) == list(new.shape)
        values = [gguf.quants.dequantize(each.data, each.tensor_type) for each in (old, new)]
        largest = np.abs(values[0]).max()
        np.testing.assert_allclose(values[1], values[0], atol=largest / 127)
    assert {each.tensor_type.name for each in after.tensors} == {"F32", "Q8_0"}


def test_committed_pages_follow_from_their_figures() -> None:
    for path in (RESULTS / "machines").glob("*.json"):
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert COMMAND.page(saved) == path.with_suffix(".md").read_text(encoding="utf-8")


def test_models_have_titles_and_files_of_their_own() -> None:
    assert len({each.title for each in MODELS.values()}) == len(MODELS)
    assert len({each.file for each in MODELS.values()}) == len(MODELS)
