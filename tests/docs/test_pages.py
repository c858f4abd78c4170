"""What the documentation says of itself and of the code: sizes, paths, links, messages."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import get_args

from penstock.cli.main import FAILED, INTERRUPTED, TERMINATED
from penstock.cli.parser import USAGE
from penstock.model.media_facts import MediaKind
from penstock.supervisor.restarts import FINAL_STARTUP_FAILURE
from tests.docs.snippets import PAGES, ROOT, text_of

FOLDERS = ("deploy", "docs", "kernels", "loadtest", "services", "shared", "tests")
_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`]+)`")
PARAGRAPH = 560
"""Characters of five lines of a page on GitHub."""


def prose(page: str) -> str:
    """Its text without fenced blocks."""
    return _CODE.sub("", text_of(page))


# ---- sizes


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").encode()) <= 9216
    for paragraph in prose("README.md").split("\n\n"):
        if not paragraph.startswith(("|", "-", "!")):
            assert len(paragraph) <= PARAGRAPH, paragraph


def test_the_architecture_is_one_page() -> None:
    assert len(text_of("ARCHITECTURE.md").split()) <= 1200


def test_the_glossary_has_the_fields_word_beside_each() -> None:
    rows = [line.split("|") for line in text_of("docs/glossary.md").splitlines() if "|" in line]
    terms = [row for row in rows if row[1].strip() not in ("term", "---")]
    assert len(terms) >= 40
    for row in terms:
        assert all(cell.strip() for cell in row[1:4]), row


# ---- paths and links


def test_named_paths_exist() -> None:
    named = [(page, path) for page in PAGES for path in _PATH.findall(text_of(page))]
    assert len(named) > 50
    assert not [each for each in named if not (ROOT / each[1]).exists()]


def test_the_walk_through_the_code_names_what_its_files_have() -> None:
    rows = re.findall(
        r"`([\w/.]+/[\w.]+)`: ((?:`\w+`(?:, )?)+)", text_of("docs/design/one-layer.md")
    )
    assert len(rows) > 15
    for file, names in rows:
        source = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            defined = rf"\b(def|class) {name}\b|\b{name}\("
            assert re.search(defined, source), f"{file} has no {name}"


def test_the_attacks_have_their_tests() -> None:
    page = (ROOT / "tests/ATTACKS.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| ") and "test, in" not in row]
    assert len(rows) > 50
    for row in rows:
        cell = row.split(" | ")[-1]
        named = re.findall(r"`([\w/]+\.py)(?:::(test_\w+))?`", cell)
        assert named, row
        for file, test in named:
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert f"def {test or 'test_'}" in source, f"{file} has no {test}"
        for test in re.findall(r"[(,] ?`(test_\w+)`", cell):
            files = [(ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in named]
            assert any(f"def {test}(" in source for source in files), f"{row} has no {test}"


def test_links_lead_somewhere() -> None:
    links = [
        (page, found[1] or found[2]) for page in PAGES for found in _LINK.finditer(prose(page))
    ]
    assert len(links) > 100
    assert not [each for each in links if not _leads_somewhere(*each)]


def _leads_somewhere(page: str, target: str) -> bool:
    if target.startswith(("http:", "https:")):
        return True
    file, _, anchor = target.partition("#")
    path = (ROOT / page).parent / file if file else ROOT / page
    return path.exists() and (not anchor or anchor in _anchors(path))


def _anchors(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {*re.findall(r'<a id="([^"]+)">', text)} | {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_every_page_is_in_the_navigation() -> None:
    navigation = text_of("mkdocs.yml")
    for page in PAGES:
        if page.startswith("docs/"):
            assert page.removeprefix("docs/") in navigation, page


# ---- facts


def test_exit_codes_are_those_of_the_code() -> None:
    page = text_of("docs/reference/exit-codes.md")
    for code in (0, FAILED, USAGE, FINAL_STARTUP_FAILURE, INTERRUPTED, TERMINATED):
        assert f"| {code} |" in page


def test_codes_of_errors_are_those_of_the_code() -> None:
    rows = text_of("docs/guides/api.md").partition("| `code` |")[2].partition("\n\n")[0]
    shown = {code for row in rows.splitlines()[2:] for code in _QUOTED.findall(row.split("|")[1])}
    given = set()
    ours = ("dialects", "gateway", "platforms", "receipts", "rpc")
    for folder in (*(f"services/penstock_{each}" for each in ours), "shared/penstock"):
        for path in (ROOT / folder).rglob("*.py"):
            given |= set(re.findall(r"\bcode=\"(\w+)\"", path.read_text(encoding="utf-8")))
    assert len(shown) > 20
    assert given <= shown
    kinds = get_args(MediaKind)
    of_media = {f"invalid_{kind}" for kind in kinds} | {f"too_many_{kind}s" for kind in kinds}
    assert of_media <= shown <= set(_messages()) | of_media


def test_messages_of_the_troubleshooting_page_are_said_somewhere() -> None:
    said = _messages()
    quoted = [
        cell
        for line in prose("docs/guides/troubleshooting.md").splitlines()
        if line.startswith("|")
        for cell in _QUOTED.findall(line.partition(" | ")[0] + " " + _message_cell(line))
        if " " in cell and not cell.startswith(("penstock", "--"))
    ]
    assert len(quoted) > 25
    for message in quoted:
        pattern = re.compile(".*".join(map(re.escape, message.split("…"))), re.DOTALL)
        assert any(pattern.search(text) for text in said), message


def _message_cell(line: str) -> str:
    """The second cell, where the first is an HTTP status."""
    cells = line.split(" | ")
    return cells[1] if cells[0].strip("| ").isdigit() else ""


@functools.cache
def _messages() -> list[str]:
    """All texts of the code; what is filled in is `…`."""
    found = []
    for folder in ("services", "shared"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (
                        part.value if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found
