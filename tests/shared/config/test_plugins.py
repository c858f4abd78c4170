"""What other packages bring: found by name, named where it is broken, refused where it was asked
for; and the examples of the documentation that need no service."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.client.routing import RoutingRequest
from penstock.client.routing_policies import make_routing
from penstock.config import plugins
from penstock.config.plugins import (
    ENDPOINTS,
    ROUTING,
    check_plugins,
    installed_plugins,
    named_plugin,
    plugin_names,
)
from penstock.config.settings import GatewayConfig, SchedulerSettings
from penstock.errors import StartupError
from penstock.parsing import CallArguments, CallBegin, Content, tool_parser
from testing.examples import EXAMPLES, install, write_package
from tests.said import said

BROKEN = {"raises": "raise RuntimeError('no luck')", "leaves": "import sys; sys.exit(3)"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages: one of endpoints that works, and broken ones."""
    (tmp_path / "pst_sound.py").write_text("def routes(service):\n    return []\n")
    for name, text in BROKEN.items():
        (tmp_path / f"pst_{name}.py").write_text(text)
    points = {"sound": "pst_sound:routes", "missing": "pst_sound:other"}
    points |= {name: f"pst_{name}:routes" for name in BROKEN}
    write_package(tmp_path, "pst-plugin", "1.0", {ENDPOINTS: points})
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("site")
def test_a_broken_one_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    found = installed_plugins(ENDPOINTS)
    assert [each.name for each in found] == ["sound"]
    assert found[0].package == "pst-plugin 1.0"
    assert found[0].value(None) == []  # type: ignore[operator]
    found = said(caplog)
    for name in ("missing", *BROKEN):
        assert f"the plug-in {name} of pst-plugin 1.0 can't be loaded" in found
    assert "no luck" in found


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("name", ["missing", *BROKEN])
def test_a_broken_one_that_was_asked_for_stops_the_start(name: str) -> None:
    with pytest.raises(StartupError, match=f"the plug-in {name} of pst-plugin 1.0"):
        installed_plugins(ENDPOINTS, f"sound, {name}")


@pytest.mark.usefixtures("site")
def test_those_that_are_asked_for_and_no_others() -> None:
    assert [each.name for each in installed_plugins(ENDPOINTS, "sound")] == ["sound"]
    assert installed_plugins(ENDPOINTS, "none") == []
    for wanted in ("all", "none", "sound", "sound,raises"):
        check_plugins(wanted)
    with pytest.raises(StartupError, match="no plug-in is called other; allowed: all, none, "):
        check_plugins("sound,other")


def test_a_name_that_two_packages_bring_is_nobodys(site: Path) -> None:
    write_package(site, "pst-other", "2.0", {ENDPOINTS: {"sound": "pst_sound:routes"}})
    plugins._installed.cache_clear()
    with pytest.raises(StartupError, match=r"pst-other 2\.0 and pst-plugin 1\.0 bring one each"):
        named_plugin(ENDPOINTS, "sound", "--some", ())


def test_settings_know_the_names_of_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(msgspec.ValidationError, match="'by-tenant'; allowed: prefix, least-loaded"):
        msgspec.convert({"routing": "by-tenant"}, GatewayConfig)
    with pytest.raises(
        msgspec.ValidationError, match="'other'; allowed: auto, fcfs, priority, fair"
    ):
        msgspec.convert({"scheduling_policy": "other"}, SchedulerSettings)
    monkeypatch.syspath_prepend(str(install("routing", tmp_path)))
    assert plugin_names(ROUTING) == ["by-tenant"]
    assert msgspec.convert({"routing": "by-tenant"}, GatewayConfig).routing == "by-tenant"


class Engine(msgspec.Struct):
    """An engine as a policy sees one."""

    endpoint: str
    load: int = 0
    block_size: int = 16


def test_the_example_of_a_routing_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install("routing", tmp_path)))
    engines = [Engine(f"engine{number}") for number in range(4)]

    def chosen(tenant: str, prompt: int) -> str:
        ask = RoutingRequest([prompt] * 100, 128, tenant=tenant)
        return make_routing("by-tenant").choose(ask, engines)[0].endpoint

    for tenant in "abcdefgh":
        assert len({chosen(tenant, prompt) for prompt in range(20)}) == 1
    assert len({chosen(tenant, 0) for tenant in "abcdefgh"}) > 1
    with pytest.raises(StartupError, match=r"--routing is best; allowed: prefix, .*, by-tenant"):
        make_routing("best")


@pytest.mark.parametrize("text", ["!add 1 2", "!now", "nothing!", "!" + "x" * 99, ""])
def test_the_example_of_a_tool_parser(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install("tool-parser", tmp_path)))

    def parsed(pieces: list[str]) -> list[str]:
        parser = tool_parser("exclaimed", "")(["add", "now"])
        events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
        words = {CallBegin: "call:", CallArguments: "", Content: ""}
        said = [words[type(each)] + each[0] for each in events]
        return ["".join(said)]

    assert parsed([text]) == parsed(list(text))
    assert parsed(["!add 1 2"]) == ["call:add1 2"]
    assert parsed(["!now"]) == ["call:now{}"]


def test_every_group_has_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in sorted(EXAMPLES.iterdir()):
        install(folder.name, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    groups = {
        value
        for name, value in vars(plugins).items()
        if name.isupper() and isinstance(value, str) and value.startswith("penstock.")
    }
    without = {group for group in groups if not plugin_names(group)}
    assert without == {plugins.REASONING_PARSERS}, (
        "a reasoning parser is brought as a tool parser is"
    )
