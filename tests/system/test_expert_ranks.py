"""Experts dealt to ranks, through the whole system: what transformers says, whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import main
from testing.serving import PATIENCE, Server, ServerFailed, wait_until
from testing.tiny_models import write_hub_folder
from tests.system.test_adapters import choice, complete
from tests.system.test_expert_adapters import TOKENS, greedy
from tests.system.test_ranks import PATIENT, streams
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES
from tests.worker.models.test_parity_families import make_theirs

pytestmark = [pytest.mark.timeout(600)]

FLAGS = ("--max-model-len", "200", "--num-kv-blocks", "128", "--dtype", "float32", *PATIENT)
RANKS = ("--tensor-parallel-size", "2", "--enable-expert-parallel")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder, and what transformers says behind PROMPT."""
    folder = tmp_path_factory.mktemp("mixture")
    family, settings = CASES["qwen3-moe"]
    settings = settings | {"vocab_size": 700, "eos_token_id": 2, "intermediate_size": 128}
    theirs = make_theirs(family, settings)
    write_hub_folder(folder, config={})
    theirs.save_pretrained(folder)
    return folder, greedy(theirs)


@pytest.fixture(scope="module")
def over_ranks(
    mixture: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    cache = str(tmp_path_factory.mktemp("cache"))
    with Server(str(mixture[0]), *FLAGS, *RANKS, "--cache-dir", cache) as server:
        yield server


def says(server: Server) -> str:
    answer = complete(server, server.model, temperature=0.0, max_tokens=TOKENS)
    return str(choice(answer)["text"])


def test_two_ranks_say_what_transformers_says(
    mixture: tuple[Path, str], over_ranks: Server
) -> None:
    assert says(over_ranks) == mixture[1]
    shares = [
        line for line in over_ranks.stderr.splitlines() if "holds some of the experts" in line
    ]
    assert len(shares) == 2
    # Three experts in two layers, each of three matrices, whose tiles are filled up.
    half = 3 * 2 * 3 * 40 * SIZES["hidden_size"] * 4
    for line in shares:
        assert " experts=6 of=12 " in line
        assert half <= int(line.rpartition("bytes=")[2]) < 2 * half


def test_a_killed_rank_breaks_no_stream(
    mixture: tuple[Path, str], over_ranks: Server, tmp_path: Path
) -> None:
    with Server(str(mixture[0]), *FLAGS, "--cache-dir", str(tmp_path)) as one:
        alone = asyncio.run(streams(one.url))
    assert all(reading.done and reading.text for reading in alone)
    before = over_ranks.children()
    victim = "penstock: worker 1"
    disturbed = asyncio.run(
        streams(over_ranks.url, lambda: os.kill(before[victim], signal.SIGKILL))
    )
    assert disturbed == alone
    wait_until(over_ranks.ready, 2 * PATIENCE, lambda: over_ranks.get("/status")[1])
    after = over_ranks.children()
    assert {name for name in before if before[name] != after[name]} == {victim}
    assert says(over_ranks) == mixture[1]


def test_show_says_what_there_is_to_deal(
    mixture: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(mixture[0]), "--cache-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "3 of 6 in 2 layers" in said
    assert "on each of 2 ranks (--enable-expert-parallel)" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "deals 6 experts to tensor_parallel_size ranks, which is 1; allowed are 2 to 6"),
        (
            ("--tensor-parallel-size", "2", "--attention-backend", "reference"),
            "which the cpu backend alone has",
        ),
    ],
)
def test_ranks_that_hold_no_experts_are_refused_in_one_clear_line(
    flags: tuple[str, ...], said: str, mixture: tuple[Path, str], tmp_path: Path
) -> None:
    own = ("--enable-expert-parallel", "--cache-dir", str(tmp_path))
    with pytest.raises(ServerFailed) as caught:
        Server(str(mixture[0]), *FLAGS, *own, *flags)
    assert caught.value.code != 0
    assert "Traceback" not in caught.value.stderr
    assert said in caught.value.stderr.strip().splitlines()[-1]


def test_a_dense_model_has_none_to_deal(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed) as caught:
        Server(tiny_model, *RANKS, "--cache-dir", str(tmp_path))
    assert "the model has no experts" in caught.value.stderr.strip().splitlines()[-1]
