"""Traces that others publish, and traffic at another rate or with shared beginnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock_planning.plan.traffic import GROUPS, PlanTraffic
from penstock_planning.simulate.commands import Synthetic
from penstock_planning.simulate.prompts import prompt_of
from penstock_planning.simulate.trace import TraceRequest, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109

2023-11-16 18:16:46.6805900,879,0
"""
"""Rows as Azure published them in 2023, with seven digits of a second."""


def lines(path: Path, *texts: str) -> str:
    path.write_text("\n".join(texts) + "\n")
    return str(path)


def test_azures_rows_count_from_the_first(tmp_path: Path) -> None:
    read = list(read_trace(lines(tmp_path / "a.csv", *AZURE.splitlines())))
    assert [one.at for one in read] == pytest.approx([0.0, 4.314579, 60.0], abs=1e-6)
    assert [(one.num_prompt, one.output_tokens) for one in read] == [
        (374, 44),
        (396, 109),
        (879, 1),
    ]


def test_azures_rows_of_2024_have_a_zone(tmp_path: Path) -> None:
    head, *_ = AZURE.splitlines()
    rows = ("2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:01.009930+00:00,23,5")
    read = list(read_trace(lines(tmp_path / "a.csv", head, *rows)))
    assert [one.at for one in read] == pytest.approx([0.0, 1.0])


def mooncake(at: int, prompt: int, output: int, hashes: list[int] | None) -> str:
    line = {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": hashes}
    return json.dumps({name: value for name, value in line.items() if value is not None})


def test_mooncakes_prompts_share_what_their_hashes_share(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "m.jsonl",
        mooncake(0, 1100, 52, [46, 47, 48]),
        mooncake(3000, 1400, 26, [46, 47, 99]),
        mooncake(3000, 600, 26, [46 + 32_768, 47]),
        mooncake(3500, 600, 0, None),
    )
    first, second, third, last = read_trace(path)
    assert (first.at, second.at, first.output_tokens, last.output_tokens) == (0.0, 3.0, 52, 1)
    one, two, three = (prompt_of(each, n) for n, each in enumerate((first, second, third)))
    assert (len(one), len(two), len(three)) == (1100, 1400, 600)
    assert one[:1024] == two[:1024]
    assert one[1024:1040] != two[1024:1040]
    assert three[:16] != one[:16]
    assert last.prompt_tokens == 600


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ((AZURE.splitlines()[0], "2023-11-16 18:15:46.68,374"), "line 2: 2 cells"),
        ((AZURE.splitlines()[0], "yesterday,374,44"), "line 2: b'yesterday"),
        ((AZURE.splitlines()[0], "2023-11-16 18:15:46,0,44"), "line 2: 0 prompt tokens"),
        ((AZURE.splitlines()[0], "2023-11-16 18:15:46,9999999,44"), "line 2: 9999999 prompt"),
        ((mooncake(0, 600, 5, [1]),), "line 1: 1 hash_ids for 600 tokens"),
        ((mooncake(0, 600, 5, None), mooncake(-1, 600, 5, None)), "line 2"),
        ((mooncake(5, 600, 5, None), mooncake(4, 600, 5, None)), "line 2: it arrives at 0.004 s"),
        ((mooncake(5, 600, 5, None), "garbage"), "line 2"),
        (('{"timestamp": 0, "input_length": 0, "output_length": 4}',), "line 1"),
    ],
)
def test_a_bad_line_is_named_by_its_number(
    tmp_path: Path, texts: tuple[str, ...], named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named):
        list(read_trace(lines(tmp_path / "trace", *texts)))


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with open(path, "wb") as file:
        file.write(b'{"at": 0, "prompt_tokens": 5, "output_tokens": 5}\n{')
        file.seek(17 * 1024 * 1024)
        file.write(b"}")
    with pytest.raises(InvalidRequest, match="line 2: longer than"):
        list(read_trace(str(path)))


def test_half_the_rate_takes_twice_as_long() -> None:
    traffic = PlanTraffic(Synthetic(rate=4.0, requests=50), 40)
    usual, slow = list(traffic.requests()), list(traffic.requests(0.5))
    assert len(usual) == len(slow) == traffic.num_requests == 40
    assert [one.at for one in slow] == pytest.approx([2 * one.at for one in usual])
    assert [one.prompt_tokens for one in slow] == [one.prompt_tokens for one in usual]
    assert list(traffic.requests()) == usual


def test_prompts_keep_their_lengths_where_a_part_is_shared() -> None:
    plain = PlanTraffic(Synthetic(requests=80), 80)
    shared = list(plain.with_reuse(0.5).requests())
    for one, other in zip(plain.requests(), shared, strict=True):
        assert other.num_prompt == one.num_prompt
        assert other.prefix_tokens == one.num_prompt // 2
    by_group: dict[int | None, list[TraceRequest]] = {}
    for one in shared:
        by_group.setdefault(one.prefix_group, []).append(one)
    assert len(by_group) == GROUPS
    for group in by_group.values():
        prompts = [prompt_of(one, number) for number, one in enumerate(group)]
        least = min(one.prefix_tokens for one in group)
        assert len({tuple(prompt[:least]) for prompt in prompts}) == 1


def test_an_empty_trace_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidRequest, match="holds no request"):
        PlanTraffic(str(tmp_path / "empty"), 10)
