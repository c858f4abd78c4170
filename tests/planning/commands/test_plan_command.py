"""penstock plan as a shell sees it."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

PENSTOCK = [sys.executable, "-m", "penstock"]
SLO, COST = ("--slo", "ttft_p95=400ms,itl_p95=40ms"), ("--step-cost", "base=10,token=0.1")
FEW = ("--requests", "60", "--output-tokens", "8")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, "plan", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_plan_is_printed_written_and_drawn(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{at / 8:09.6f},{100 + at},{20 + at % 7}" for at in range(100)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    report, chart = tmp_path / "plan.json", tmp_path / "plan.svg"
    files = ("--output", report, "--chart", chart, "--what-if", "max_num_seqs=1")
    done = run(*SLO, *COST, "--trace", trace, *files)
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads(report.read_text())
    assert f"Needed: {figures['cores']} engine core(s)." in done.stdout
    assert "The knee" in done.stdout
    assert figures["requests"] == 100
    assert figures["estimated"] is False
    assert figures["what_if"][0]["cores"] > figures["cores"]
    drawing = ET.parse(chart).getroot()
    words = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "ttft_p95 ≤ 400 ms" in words
    again = run(*SLO, *COST, "--trace", trace, "--what-if", "max_num_seqs=1", "--json")
    assert json.loads(again.stdout) == figures


def test_an_estimate_says_that_it_is_one() -> None:
    done = run(*SLO, "--rate", "2", *FEW, "--device", "l4", "--model", "smollm2-135m")
    assert (done.returncode, done.stderr) == (0, "")
    assert "AN ESTIMATE, not measured" in done.stdout
    assert "300 GB/s" in done.stdout


def test_an_objective_out_of_reach_ends_with_1() -> None:
    done = run("--slo", "itl_p50=1ms", *COST, "--rate", "2", *FEW)
    assert done.returncode == 1
    assert "No number of engine cores holds the objective" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--slo", "ttft=1", *COST, "--rate", "1"),
            "--slo, 'ttft=1': '' is no percentile; it takes",
        ),
        ((*SLO, "--rate", "1"), "penstock bench steps MODEL --output FILE"),
        ((*SLO, *COST), "either --trace or --rate"),
        ((*SLO, *COST, "--rate", "0"), "--rate must be in 0.001 to 100,000, not 0"),
        ((*SLO, *COST, "--rate", "1e-300"), "--rate must be in 0.001 to 100,000, not 1e-300"),
        ((*SLO, *COST, "--rate", "nan"), "--rate must be in"),
        ((*SLO, *COST, "--rate", "1", "--output-tokens", "70000"), "--output-tokens must be in 1"),
        ((*SLO, "--rate", "1", "--step-cost", "base=1e9"), "each of them 0 or 1e-09 to 60,000"),
        ((*SLO, "--rate", "1", "--step-cost", "base=5,token=1e-300"), "1e-09 to 60,000"),
        ((*SLO, "--rate", "1", "--step-cost", "base=0"), "at least 0.001 ms are allowed"),
        ((*SLO, *COST, "--rate", "1", "--requests", "0"), "--requests must be in 1 to"),
        ((*SLO, *COST, "--rate", "1", "--reuse", "2"), "--reuse must be in 0 to 1"),
        ((*SLO, *COST, "--trace", "/no/such/trace"), "No such file"),
        ((*SLO, "--rate", "1", "--device", "h100"), "--device needs --model"),
        ((*SLO, "--rate", "1", "--device", "abacus", "--model", "smollm2-135m"), "it takes 3060"),
        ((*SLO, *COST, "--rate", "1", "--gateway-ms", "-1"), "--gateway-ms must be in"),
    ],
)
def test_a_wrong_flag_of_plan_is_named(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_with_keys_it_plans_for_the_policy_that_the_server_has(tmp_path: Path) -> None:
    keyed = tmp_path / "penstock.yaml"
    keyed.write_text("gateway:\n  api_keys: keys.json\n")
    asked = (*SLO, *COST, "--rate", "2", *FEW, "--json")
    policies = [
        json.loads(run(*asked, *flags).stdout)["settings"]["scheduling_policy"]
        for flags in ((), ("--config", keyed))
    ]
    assert policies == ["fcfs", "fair"]
