"""A prepared model's manifest names the module of its family, and no other is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.families import finding
from penstock.families.served import FAMILIES, module_of
from penstock.prepare import load_manifest, prepare
from penstock.prepare.folder import MANIFEST
from testing.tiny_models import write_hub_folder

KNOWN = """
import sys
from penstock.families.finding import know_family, served_family
know_family({name!r}, {module!r})
print(served_family({name!r}).name, "penstock.families.served" in sys.modules)
"""


def known(name: str, module: str) -> str:
    """The family that a process finds that was told a module, and whether it imported all."""
    program = KNOWN.format(name=name, module=module)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_named_module_defines_the_family(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_KNOWN", {})
    finding.know_family(name, module_of(name))
    assert {name: FAMILIES[name]} == finding._KNOWN


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_no_other_family_is_imported(name: str) -> None:
    assert known(name, module_of(name)) == f"{name} False"


@pytest.mark.parametrize(
    "module",
    [
        "",
        "penstock.families.gone",
        "penstock.families.gemma2",
        "os",
        "penstock.families.vision.clip",
    ],
)
def test_another_module_is_passed_over_and_all_are_looked_through(module: str) -> None:
    assert known("llama", module) == "llama True"


def test_prepare_names_it(tmp_path: Path) -> None:
    prepared = prepare(str(write_hub_folder(tmp_path / "model")))
    assert load_manifest(prepared).family_module == module_of("llama")


def test_a_family_that_nobody_defines_is_refused(tmp_path: Path) -> None:
    prepared = Path(prepare(str(write_hub_folder(tmp_path / "model"))))
    manifest = load_manifest(prepared)
    other = msgspec.structs.replace(
        manifest, config=msgspec.structs.replace(manifest.config, architecture="no_such")
    )
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / MANIFEST).write_bytes(msgspec.json.encode(other))
    with pytest.raises(Exception, match="the family 'no_such' is not served"):
        load_manifest(folder)
