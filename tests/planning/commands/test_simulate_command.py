"""penstock simulate and fit-cost as a shell sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.record.test_recording import recorded_walk

PENSTOCK = [sys.executable, "-m", "penstock"]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def test_simulate_prints_writes_and_draws(tmp_path: Path) -> None:
    report, chart, trace = tmp_path / "r.json", tmp_path / "c.png", tmp_path / "trace"
    trace.write_text(
        "".join(
            json.dumps({"at": at / 4, "prompt_tokens": 20 + at, "output_tokens": 5}) + "\n"
            for at in range(40)
        )
    )
    flags = ("--policy", "fcfs", "--blocks", "200", "--step-cost", "base=5,token=0.1")
    done = run("simulate", trace, *flags, "--output", report, "--chart", chart, "--replicas", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "40 completed, 0 refused" in done.stdout
    figures = json.loads(report.read_text())
    assert figures["output_tokens"] == 200
    assert figures["replicas"] == 2
    assert chart.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("/no/such/trace",), "No such file"),
        (("synthetic:speed=1",), "unknown field `speed`"),
        (("synthetic:", "--step-cost", "x=1"), "it takes base, token"),
        (("synthetic:", "--policy", "chaos"), "chaos"),
        (("synthetic:", "--blocks", "0"), "num_kv_blocks: 0 is not allowed"),
    ],
)
def test_simulate_names_what_is_wrong(arguments: tuple[str, ...], words: str) -> None:
    done = run("simulate", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_fit_cost_wants_measured_steps(tmp_path: Path) -> None:
    recorded_walk(tmp_path, 3, 200, measured=False)
    done = run("fit-cost", tmp_path)
    assert done.returncode == 2
    assert "measured steps" in done.stderr


def test_with_keys_it_computes_the_policy_that_the_server_has(tmp_path: Path) -> None:
    keyed = tmp_path / "penstock.yaml"
    keyed.write_text("gateway:\n  api_keys: keys.json\n")
    traffic = "synthetic:requests=60,rate=20,prompt=400,tenants=many:9+few:1"

    def simulated(*flags: str | Path) -> dict[str, object]:
        report = tmp_path / "report.json"
        done = run(
            "simulate", traffic, "--step-cost", "base=5,token=0.1", *flags, "--output", report
        )
        assert (done.returncode, done.stderr) == (0, "")
        return dict(json.loads(report.read_text())["tenants"])

    fair = simulated("--policy", "fair")
    assert simulated("--config", keyed) == fair
    assert simulated("--config", keyed, "--policy", "fcfs") == simulated() != fair


def test_cells_are_simulated_and_what_they_lack_is_told(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    flags = ("--cells", "2", "--replicas", "2", "--policy", "fair", "--steps-at-once")
    happens = ("--happens", "lost:at=10,away=5", "--windows", "calm:0,lost:10")
    done = run("simulate", "mixed:seconds=20,rate=0.5", *flags, *happens, "--output", report)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 × 2 engine cores" in done.stdout
    figures = json.loads(report.read_text())
    assert [window["name"] for window in figures["windows"]] == ["calm", "lost"]
    assert sum(window["requests"] for window in figures["windows"]) == figures["requests"] > 20
    done = run("simulate", "mixed:seconds=20", *flags, "--disk-blocks", "5")
    assert done.returncode == 2
    assert "--disk-blocks is not for a simulation of cells" in done.stderr
    done = run("simulate", "mixed:seconds=20", "--across", "round-robin")
    assert done.returncode == 2
    assert "--across needs --cells" in done.stderr


def test_mixed_traffic_needs_no_cells() -> None:
    done = run("simulate", "mixed:seconds=20,rate=0.5", "--step-cost", "base=5,token=0.1")
    assert done.returncode == 0
    assert ", 0 refused" in done.stdout
