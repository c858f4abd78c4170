"""A hook of mkdocs: links of a page that lead out of docs/, which the site doesn't have, become the
names of what they lead to."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Returns a page's text for the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def named(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, target.partition("#")[0]))
        if path.startswith("docs/"):
            return found[0]
        name = f"`{path}`"
        return text if text == name else f"{text} ({name})"

    return _LINK.sub(named, markdown)
