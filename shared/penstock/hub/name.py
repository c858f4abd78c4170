"""Names of models on the hub: `owner/name`, `owner/name:Q4_K_M`, `owner/name@revision`."""

from __future__ import annotations

import re

import msgspec

REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}"
_NAME = re.compile(
    rf"(?P<repository>{REPOSITORY})"
    r"(?:@(?P<before>\w[\w./-]{0,127}))?(?::(?P<choice>\w[\w./ +-]{0,255}))?"
    r"(?:@(?P<behind>\w[\w./-]{0,127}))?"
)


class HubName(msgspec.Struct, frozen=True):
    """A model on the hub.

    revision: branch, tag, pull request or commit; None: the main branch.
    choice: of a repository of GGUF files, a quantisation or a file; of an adapter, its file or its
    folder; None: whatever is the default.
    """

    repository: str
    revision: str | None = None
    choice: str | None = None

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return self.repository + at + (f":{self.choice}" if self.choice else "")


def parse(text: str) -> HubName | None:
    """None for what can't be a name on the hub: a path, for example."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    revision, choice = found["before"] or found["behind"], found["choice"]
    if found["before"] and found["behind"]:
        return None
    if any(".." in part or "//" in part for part in (text, revision or "", choice or "")):
        return None
    if choice is None and revision is None and text.lower().endswith(".gguf"):
        return None  # the path of a file that isn't there
    return HubName(found["repository"], revision, choice)
