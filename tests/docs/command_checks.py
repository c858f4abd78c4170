"""Whether a command of the documentation could run: its program's own parser reads it, what it
names exists. Commands that need no other machine or minutes are run too, by test_docs of the
system's tests."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from penstock.cli.commands import BY_NAME
from penstock.config.flags import resolve
from tests.docs.snippets import BASE, ROOT

Variables = Mapping[str, str]

RUN_OPTIONS = {"--rm", "-p", "-v"}
"""Options of `docker run` that the pages may use."""

FOREIGN = {
    "chmod",
    "cp",
    "cut",
    "kill",
    "kubectl",
    "printf",
    "promtool",
    "python3",
    "ray",
    "sed",
    "sha256sum",
    "systemctl",
    "umask",
}
"""Programs of others, which no test knows."""


SERVICE = "/opt/penstock"
"""Where the systemd unit expects Penstock."""


def check_command(variables: Variables, words: list[str]) -> None:
    """Raises AssertionError for what couldn't run."""
    program, arguments = words[0].removeprefix(f"{SERVICE}/"), words[1:]
    if program in FOREIGN:
        return
    if "/" in program and not program.startswith(".venv/bin/"):
        assert (ROOT / program).is_file(), f"there is no {program}"
        return
    check = _CHECKS.get(program.removeprefix(".venv/bin/"))
    assert check is not None, f"nothing checks commands of {program}"
    check(variables, arguments)


def _penstock(variables: Variables, arguments: list[str]) -> None:
    name = arguments[0]
    assert name in BY_NAME, f"there is no penstock {name}"
    try:
        parsed = BY_NAME[name].parser().parse_args(arguments[1:])
    except SystemExit as end:
        raise AssertionError(f"penstock {shlex.join(arguments)} is wrong usage") from end
    if any(key.startswith("setting_") for key in vars(parsed)):
        parsed.config = None
        resolve(parsed)


def _make(variables: Variables, arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in arguments:
        name, given, value = word.partition("=")
        if given:
            assert re.search(rf"^{name} \?=|\$\$?{name}\b|\({name}\)", makefile, re.MULTILINE), name
            if name == "ARGS":
                _penstock({}, ["serve", *shlex.split(value)])
        else:
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"there is no make {name}"


def _python(variables: Variables, arguments: list[str]) -> None:
    if arguments[0] != "-m":
        assert (ROOT / arguments[0]).is_file(), f"there is no {arguments[0]}"
    elif arguments[1] == "pytest":
        for word in arguments[2:]:
            assert "/" not in word or (ROOT / word).exists(), f"there is no {word}"
    else:
        path = ROOT / arguments[1].replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), arguments[1]


def _pip(variables: Variables, arguments: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in arguments[1:]:
        if word.startswith(("penstock-llm[", ".[")):
            extra = word.partition("[")[2].removesuffix("]")
            assert extra in project["optional-dependencies"], f"there is no extra {extra}"
        elif "==" in word:
            assert word in makefile, f"{word} is another version than the Makefile's"


def _docker(variables: Variables, arguments: list[str]) -> None:
    match arguments[0]:
        case "build":
            named = dict(itertools.pairwise(arguments))
            stages = (ROOT / named["-f"]).read_text(encoding="utf-8")
            target = named["--target"]
            assert re.search(f"^FROM .* AS {target}$", stages, re.MULTILINE), target
        case "run":
            image = arguments.index("penstock")
            unknown = {word for word in arguments[1:image] if word.startswith("-")} - RUN_OPTIONS
            assert not unknown, unknown
            _penstock(variables, ["serve", *arguments[image + 1 :]])  # as the image begins
        case _:
            assert arguments[0] == "compose"
            _compose(variables, arguments)


def _compose(variables: Variables, arguments: list[str]) -> None:
    for flag, value in itertools.pairwise(arguments):
        if flag == "-f":
            assert (ROOT / value).is_file(), f"there is no {value}"
    known = "".join(path.read_text(encoding="utf-8") for path in _compose_files())
    for name in variables:
        assert f"${{{name}" in known, f"no compose file reads {name}"


def _compose_files() -> list[Any]:
    return [ROOT / "docker-compose.yml", *(ROOT / "deploy").glob("compose.*")]


def _helm(variables: Variables, arguments: list[str]) -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/penstock/values.yaml").read_text(encoding="utf-8"))
    assert (ROOT / arguments[2]).is_dir(), f"there is no {arguments[2]}"
    for flag, value in itertools.pairwise(arguments):
        if flag == "--set":
            functools.reduce(
                lambda tree, key: tree[key], value.partition("=")[0].split("."), values
            )


def _curl(variables: Variables, arguments: list[str]) -> None:
    assert any(word.startswith(BASE) for word in arguments), f"curl asks another than {BASE}"


def _envoy(variables: Variables, arguments: list[str]) -> None:
    flag, value = arguments
    assert flag == "--config-path", f"envoy has no {flag} here"
    assert (ROOT / value).is_file(), f"there is no {value}"


def _haproxy(variables: Variables, arguments: list[str]) -> None:
    *flags, flag, value = arguments
    assert [*flags, flag] == ["-W", "-db", "-f"], f"haproxy has no {arguments} here"
    text = (ROOT / value).read_text(encoding="utf-8")
    for name in variables:
        assert f"${name}" in text or f"${{{name}" in text, f"{value} doesn't read {name}"


_CHECKS: dict[str, Callable[[Variables, list[str]], None]] = {
    "penstock": _penstock,
    "make": _make,
    "python": _python,
    "pip": _pip,
    "docker": _docker,
    "helm": _helm,
    "curl": _curl,
    "envoy": _envoy,
    "haproxy": _haproxy,
}
