"""What the images install: by hash, in the versions that are tested, and with all that it needs."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.docker.requirements import WITH_TORCH, closure, normal, read, wanted

ROOT = Path(__file__).resolve().parents[2]
LOCKED = read((ROOT / "deploy/docker/lock.txt").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
ALL_IN_ONE = ["gateway", "storage", "grpc", "otel", "engine", "worker"]
IMAGES = (["gateway"], ["engine"], ["worker"], ALL_IN_ONE)


def test_each_has_a_hash_and_the_version_that_is_tested() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    versions = {normal(name): version for name, version in tested.items()}
    compared = 0
    for name, each in LOCKED.items():
        pinned = re.match(r"[\w.-]+==([\w.+]+)", each.lines[0])
        assert pinned is not None, name
        hashes = [line for line in each.lines[1:] if re.search(r"--hash=sha256:[0-9a-f]{64}", line)]
        assert len(hashes) == len(each.lines) - 1 > 0, name
        if name in versions:
            assert pinned[1] == versions[name], name
            compared += 1
    assert compared > 80


def needed_here(extras: list[str]) -> set[str]:
    """What Penstock's metadata and those of the packages installed here say."""
    waiting = [*PROJECT["dependencies"]]
    for extra in extras:
        waiting += PROJECT["optional-dependencies"][extra]
    seen: set[tuple[str, str]] = set()
    found: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = normal(requirement.name)
        if WITH_TORCH.fullmatch(name) and name != "torch":
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found.add(name)
            for more in importlib.metadata.requires(name) or ():
                marker = Requirement(more).marker
                if marker is None or marker.evaluate({"extra": extra}):
                    waiting.append(more)
    return found - {"torch"}


@pytest.mark.parametrize("extras", IMAGES, ids=" ".join)
def test_an_image_installs_all_that_it_needs(extras: list[str]) -> None:
    assert needed_here(extras) <= wanted(LOCKED, PROJECT, extras)


def test_torch_is_left_to_who_chooses_its_build() -> None:
    names = wanted(LOCKED, PROJECT, ALL_IN_ONE)
    assert not any(WITH_TORCH.fullmatch(name) for name in names)
    assert "triton" in wanted(LOCKED, PROJECT, ["worker", "cuda"])
    assert {"torch", "triton", "nvidia-cublas", "sympy"} <= closure(LOCKED, {"torch"})


EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"dev", "all"})
MACHINES = [
    {"sys_platform": system, "platform_system": system.title(), "platform_machine": machine}
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_is_locked_for_the_machines_that_it_is_for(extra: str) -> None:
    """pip skips a line whose marker is false on the machine."""
    found = wanted(LOCKED, PROJECT, ["gateway", extra])
    for each in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if each.name == "torch":
            continue
        assert normal(each.name) in found
        line = Requirement(LOCKED[normal(each.name)].lines[0].removesuffix("\\"))
        for machine in MACHINES:
            wants, has = (
                marker is None or marker.evaluate(dict(machine))
                for marker in (each.marker, line.marker)
            )
            assert has == wants, machine


def test_what_is_not_locked_is_named_with_who_wants_it() -> None:
    with pytest.raises(LookupError, match=r"no extra nonsense: .*flash-attention-3"):
        wanted(LOCKED, PROJECT, ["nonsense"])
    less = {name: each for name, each in LOCKED.items() if name != "tokenspeed-fa3"}
    with pytest.raises(
        LookupError,
        match=r"lock\.txt has no tokenspeed-fa3 \(the extra flash-attention-3 needs it\)",
    ):
        wanted(less, PROJECT, ["worker", "flash-attention-3"])
    with pytest.raises(LookupError, match=r"lock\.txt has no nonsense"):
        closure(LOCKED, {"nonsense"})


STAGE = re.compile(
    r"^COPY (deploy/docker/requirements\.py .*) \./\n((?:(?!^FROM ).*\n)*)", re.MULTILINE
)


@pytest.mark.parametrize("stage", [*STAGE.finditer(DOCKERFILE)], ids=lambda stage: stage[2][:40])
def test_a_stage_has_what_its_commands_read(stage: re.Match[str], tmp_path: Path) -> None:
    for name in stage[1].split():
        shutil.copy(ROOT / name, tmp_path)
    commands = re.findall(r"python requirements\.py ([^>]*)>", stage[2])
    assert commands
    for words in commands:
        given = words.replace("${EXTRAS}", "").split()
        command = [sys.executable, "requirements.py", *given]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "--hash=sha256:" in done.stdout


def test_torch_without_an_index_comes_with_what_it_needs() -> None:
    """PyPI's build needs CUDA's libraries even where it computes on a CPU."""
    stage = DOCKERFILE.partition("FROM builder AS torch\n")[2].partition("\nFROM ")[0]
    named, _, unnamed = stage.replace("\\\n", " ").partition(" else ")
    assert 'if [ -n "${TORCH_INDEX}" ]' in named
    assert re.search(
        r"requirements\.py =torch > (\S+) .*--require-hashes --no-deps -r \1;", unnamed
    )


def test_images_install_nothing_else_without_a_hash() -> None:
    text = DOCKERFILE.replace("\\\n", " ")
    text += (ROOT / "deploy/docker/finish.sh").read_text(encoding="utf-8")
    installs = re.findall(r"pip (?:-\S+ \S+ )?install [^;&\n]*", text)
    assert len(installs) > 8
    free = [each for each in installs if "--require-hashes" not in each]
    # torch of an index that was named, plug-ins, and the wheel that was built here.
    allowed = ("INDEX", "PLUGINS", "/dist/")
    assert [each for each in free if not any(word in each for word in allowed)] == []
