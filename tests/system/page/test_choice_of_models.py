"""Where a server has several models, the page has a choice of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml

from testing.serving import Server
from tests.system.page.driving import Chat, Tab

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    entries = [
        {"name": name, "model": "smollm2-135m", "settings": {"max_model_len": length}}
        for name, length in (("short", 512), ("long", 1024))
    ]
    listed = tmp_path_factory.mktemp("list") / "models.yaml"
    listed.write_text(yaml.safe_dump({"models": entries}))
    with Server("--models", str(listed), "--kv-memory-gib", "0.5") as server:
        yield server


def test_what_is_chosen_answers_and_is_remembered(
    two: Server, open_tab: Callable[..., Tab]
) -> None:
    tab = open_tab(two.url)
    chat = Chat(tab)
    choice = chat.page.get_by_label("Model", exact=True)
    choice.wait_for()
    assert choice.input_value() == "short"
    assert "512" in chat.page.locator("#used").inner_text()
    choice.select_option("long")
    assert "1,024" in chat.page.locator("#used").inner_text()
    with chat.page.expect_request("**/v1/chat/completions") as asked:
        chat.send("Say yes.", wait=False)
    body = asked.value.post_data_json
    assert body is not None
    assert body["model"] == "long"
    chat.ended()
    tab.load(chat.page.reload)
    choice.wait_for()
    assert choice.input_value() == "long"
