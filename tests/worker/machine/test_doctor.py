"""`penstock doctor`: what it says when all is well, and when the kernels are missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.process import numa
from penstock_kernels.cpu import library
from penstock_worker.machine import doctor, environment_checks
from penstock_worker.machine.doctor import examine
from penstock_worker.machine.environment_checks import Advice

ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd {} fphp
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""
"""/proc/cpuinfo of an ARM processor, which has no name there."""


def test_processors_of_arm(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(ARM.format("asimddp i8mm"))
    name = "ARM, implementer 0x41, part 0xd40"
    assert environment_checks.processor(cpuinfo) == f"{name}: asimd asimddp i8mm"
    cpuinfo.write_text(ARM.format("aes"))
    with pytest.raises(Advice, match=rf"{name}: no dot products \(asimddp\)"):
        environment_checks.processor(cpuinfo)


def test_everything_is_found_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["cpu kernels"]["text"].split(",")[0] in library.INSTRUCTION_SETS
    assert Path(findings["default model"]["text"]).is_dir()
    assert "`penstock recommend`" in findings["models"]["text"]
    assert re.match(r"0 \(\d+ of \d+ CPUs usable\)|none shown", findings["numa nodes"]["text"])


def test_several_numa_nodes_are_shown_with_what_ranks_would_do_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(doctor, "usable_cores", lambda: 8.0)
    monkeypatch.setattr(numa, "NODES", tmp_path)
    monkeypatch.setattr(numa, "STATUS", tmp_path / "none")
    for node, cpus in enumerate(("0-3", "4-7")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus)
    [shown] = [finding for finding in examine() if finding.name == "numa nodes"]
    nodes = "0 (4 of 4 CPUs usable), 1 (4 of 4 CPUs usable)"
    assert (shown.level, shown.text.partition(";")[0]) == ("note", nodes)
    [placed] = [one for one in examine("smollm2-135m") if one.name == "--numa auto"]
    assert (placed.level, placed.text) == ("ok", "ranks on 0,1, 4 threads each")
    (tmp_path / "node1" / "cpulist").write_text("")
    assert "--numa auto" not in {finding.name for finding in examine("smollm2-135m")}


def test_gpus_are_named_and_none_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Advice, match="the CPU is used"):
        environment_checks.gpu()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB'\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    assert environment_checks.gpu() == "NVIDIA H200, 143771 MiB"


def test_a_triton_that_cannot_be_loaded_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.match(r"\d+\.\d+", environment_checks.triton())
    monkeypatch.setenv("CC", "the-compiler")
    assert environment_checks.triton().endswith("with the-compiler")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(Advice, match=r"penstock-llm\[cuda\]"):
        environment_checks.triton()


def test_missing_kernels_are_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "PATH", tmp_path / "nothing.so")
    library.load.cache_clear()
    try:
        assert main(["doctor"]) == 1
        [missing] = [finding for finding in examine() if not finding.ok]
    finally:
        monkeypatch.undo()
        library.load.cache_clear()
    assert missing.name == "cpu kernels"
    assert "install a C++ compiler" in missing.text
    assert "reference backend is used" in missing.text
    assert "MISS cpu kernels" in capsys.readouterr().out


@pytest.mark.parametrize(("share", "level"), [(0.04, "ok"), (0.7, "note")])
def test_a_machine_that_works_for_others_is_noted(
    monkeypatch: pytest.MonkeyPatch, share: float, level: str
) -> None:
    monkeypatch.setattr(environment_checks.Others, "share", lambda self: share)
    [found] = [finding for finding in examine() if finding.name == "load"]
    assert (found.level, found.ok) == (level, True)
    assert f"{share:.0%}" in found.text
