"""The reference that needs no running system is current."""

from __future__ import annotations

import re

from penstock.families.served import FAMILIES
from tests.docs.snippets import text_of
from tests.reference.families import families_page
from tests.reference.formats import formats_page
from tests.reference.pages import commands_page, settings_page
from tests.reference.weights import weights_page

HOW = "run `python -m tests.reference.generate`"


def test_settings() -> None:
    assert text_of("docs/reference/settings.md") == settings_page(), HOW


def test_a_setting_can_be_linked_to() -> None:
    page = text_of("docs/reference/settings.md")
    flags = re.findall(r"^- .*?`--([a-z0-9-]+)`", page, re.MULTILINE)
    assert len(flags) >= 200
    assert re.findall(r'<a id="([^"]+)">', page) == flags


def test_families() -> None:
    assert text_of("docs/reference/families.md") == families_page(), HOW
    assert text_of("docs/reference/formats.md") == formats_page(), HOW
    assert f"[{len(FAMILIES)} families](docs/reference/families.md)" in text_of("README.md")


def test_weights() -> None:
    assert text_of("docs/reference/weights.md") == weights_page(), HOW


def test_commands() -> None:
    assert text_of("docs/reference/commands.md") == commands_page(), HOW
