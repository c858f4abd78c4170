"""The site looks as the server's own page does, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from types import SimpleNamespace

import yaml

from docs.outside_links import on_page_markdown
from tests.docs.snippets import ROOT, text_of

WEB = "services/penstock_gateway/web"
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_VARIABLE = re.compile(r"--([\w-]+): ([^;]+);")


def variables(sheet: str, selector: str) -> dict[str, str]:
    """The custom properties of the first rule whose selector ends so."""
    bodies = [body for where, body in _RULE.findall(sheet) if where.strip().endswith(selector)]
    return dict(_VARIABLE.findall(bodies[0]))


def test_colours_and_fonts_are_those_of_the_page() -> None:
    page, site = text_of(f"{WEB}/style.css"), text_of("docs/look/site.css")
    light, dark = variables(page, ":root"), variables(page, ':root[data-theme="dark"]')
    fonts = variables(site, ":root")
    assert fonts.items() <= light.items()
    assert fonts.keys() == {"sans", "serif", "mono"}
    for scheme, known in (("default", light), ("slate", dark)):
        own = variables(site, f'[data-md-color-scheme="{scheme}"]')
        assert len(own) > 10
        assert own.items() <= known.items()


def test_its_logo_is_the_pages() -> None:
    theme = yaml.safe_load(text_of("mkdocs.yml"))["theme"]
    for name in ("logo", "favicon"):
        assert text_of(f"docs/{theme[name]}") == text_of(f"{WEB}/icon.svg")


def test_it_loads_nothing_from_elsewhere() -> None:
    site = yaml.safe_load(text_of("mkdocs.yml"))
    assert site["theme"]["font"] is False
    sheets = site["extra_css"]
    assert sheets
    for sheet in sheets:
        assert (ROOT / "docs" / sheet).is_file()
        assert "//" not in text_of(f"docs/{sheet}")
        assert "@import" not in text_of(f"docs/{sheet}")


def test_its_links_lead_to_pages_that_it_has() -> None:
    assert "docs/outside_links.py" in yaml.safe_load(text_of("mkdocs.yml"))["hooks"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guides/agents.md"))
    for written, shown in (
        ("see [keys](keys.md)", "see [keys](keys.md)"),
        ("[A](../reference/settings.md#seed)", "[A](../reference/settings.md#seed)"),
        ("![A](../images/seeing.png)", "![A](../images/seeing.png)"),
        ("[measured](../../loadtest/README.md#once)", "measured (`loadtest/README.md`)"),
        ("[`deploy/README.md`](../../deploy/README.md) has", "`deploy/README.md` has"),
    ):
        assert on_page_markdown(written, page=page, config=None, files=None) == shown


def test_a_link_that_leads_nowhere_ends_its_making() -> None:
    rule = re.search(r"^\t.*mkdocs build.*$", text_of("Makefile"), re.MULTILINE)
    assert rule is not None
    assert "--strict" in rule[0]
    assert "--quiet" not in rule[0]  # It hides the warnings that --strict counts.
