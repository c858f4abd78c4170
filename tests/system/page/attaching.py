"""A chat to which files are attached, and files to attach."""

from __future__ import annotations

import base64
from typing import Any

from testing.trained.seeing.exam import file_of
from testing.trained.seeing.pictures import Things
from tests.system.page.driving import Chat

STARS = Things(3, "blue", "star")
CIRCLE = Things(1, "red", "circle")
PASTED = """([name, data, text]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const brought = new DataTransfer();
  brought.items.add(new File([bytes], name, { type: "image/png" }));
  if (text) brought.setData("text/plain", text);
  const box = document.getElementById("message");
  box.dispatchEvent(new ClipboardEvent("paste", { clipboardData: brought, cancelable: true }));
}"""
DROPPED = """([name, data, place = "#messages"]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name, { type: "image/png" }));
  const target = document.querySelector(place).parentElement;
  return ["dragover", "drop"].every((kind) => !target.dispatchEvent(
    new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true })));
}"""


def png(things: Things, seed: int = 1) -> bytes:
    return file_of(things, seed, 200, 160)


class Shown(Chat):
    """A chat to which pictures are attached."""

    def attach(self, name: str, content: bytes, kind: str = "image/png") -> None:
        file: Any = {"name": name, "mimeType": kind, "buffer": content}
        self.page.get_by_label("Files to attach").set_input_files(file)

    def brought(self, script: str, name: str, content: bytes, *more: str) -> Any:
        return self.page.evaluate(script, [name, base64.b64encode(content).decode(), *more])

    def attached(self, *names: str) -> None:
        """Waits until these are attached, and drawn."""
        self._drawn("#attached img", names)

    def in_messages(self, *names: str) -> None:
        """Waits until the messages show these."""
        self._drawn(".message .shown img", names)

    def _drawn(self, place: str, names: tuple[str, ...]) -> None:
        self.tab.until(
            """([place, names]) => {
              const found = [...document.querySelectorAll(place)];
              return JSON.stringify(found.map((each) => each.alt)) === JSON.stringify(names)
                && found.every((each) => each.complete && each.naturalWidth > 0);
            }""",
            [place, list(names)],
        )

    def notice(self, words: str) -> None:
        self.page.locator(".notice", has_text=words).wait_for()


def data_uri(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
