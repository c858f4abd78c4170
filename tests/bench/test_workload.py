"""Workloads: seeded, distinct, of the lengths asked; bad options are refused."""

from __future__ import annotations

import argparse
import itertools
import json
import random
from typing import Any

import pytest

from penstock.cli.main import main
from penstock_bench.load.flags import add_arguments
from penstock_bench.load.options import Length, LoadOptions, OptionError
from penstock_bench.load.target import Target, TargetError
from penstock_bench.load.workload import WORDS, Workload, arrival_times


def prompts(count: int, **options: Any) -> list[list[str]]:
    workload = Workload(LoadOptions(**options), "m")
    return [json.loads(workload.request(index).body)["prompt"].split() for index in range(count)]


def test_the_same_seed_gives_the_same_bytes_in_any_order() -> None:
    options = LoadOptions(output_tokens=Length.parse("uniform:1:99"), seed=3)
    first = [Workload(options, "m").request(index) for index in range(20)]
    second = [Workload(options, "m").request(index) for index in reversed(range(20))]
    assert first == second[::-1]
    other = Workload(LoadOptions(output_tokens=Length.parse("uniform:1:99"), seed=4), "m")
    assert first[0].body != other.request(0).body


def test_prompts_share_only_what_is_asked() -> None:
    own = prompts(50)
    assert all(len(prompt) == 128 for prompt in own)
    assert len({tuple(prompt[:16]) for prompt in own}) == 50
    shared = prompts(50, shared_prefix=100)
    assert all(len(prompt) == 128 for prompt in shared)
    assert len({tuple(prompt[:100]) for prompt in shared}) == 1
    assert len({tuple(prompt[100:]) for prompt in shared}) == 50


def test_words_are_distinct_and_plain() -> None:
    assert len(set(WORDS)) == len(WORDS) > 200
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


@pytest.mark.parametrize("text", ["128", "uniform:16:64", "lognormal:40:0.7:200"])
def test_lengths_stay_in_their_bounds(text: str) -> None:
    length = Length.parse(text)
    assert str(length) == text
    rng = random.Random(0)
    drawn = [length.draw(rng) for _ in range(2000)]
    assert min(drawn) >= (1 if length.kind == "lognormal" else length.low)
    assert max(drawn) <= length.high
    if length.kind == "lognormal":
        assert 35 <= sorted(drawn)[1000] <= 45


@pytest.mark.parametrize(
    "text",
    ["", "0", "-3", "x", "uniform:5:2", "uniform:5", "lognormal:5:nan:9", "fixed:1:2", "1e9"],
)
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"no length|low <= high"):
        Length.parse(text)


def test_poisson_arrivals_have_the_rate_and_its_spread() -> None:
    times = list(itertools.islice(arrival_times(LoadOptions(rate=50.0, seed=1)), 20_000))
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.03)
    assert variance == pytest.approx(1 / 50**2, rel=0.1)  # an exponential's is its mean squared
    assert times == list(itertools.islice(arrival_times(LoadOptions(rate=50.0, seed=1)), 20_000))


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"requests": 0},
        {"rate": 0.0},
        {"timeout": float("nan")},
        {"token_id_range": (9, 9)},
        {"prompt_kind": "token-ids", "endpoint": "chat"},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        LoadOptions(**options)


def test_flags_make_the_default_options() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = vars(parser.parse_args([]))
    assert LoadOptions(**flags) == LoadOptions()


def test_urls() -> None:
    target = Target.from_url("https://example.org/api/v1/")
    assert target == Target("example.org", 443, tls=True, prefix="/api")
    assert b"POST /api/v1/completions HTTP/1.1\r\n" in target.head("/v1/completions", 3)
    for bad in ("localhost:8000", "ftp://x", "http://", "http://x:99999"):
        with pytest.raises(TargetError):
            Target.from_url(bad)


def test_no_server_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:1", "--no-progress"]) == 1
    assert "127.0.0.1:1/v1/models gave no model" in capsys.readouterr().err
