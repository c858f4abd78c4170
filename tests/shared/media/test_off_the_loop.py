"""What is imported for a model's first picture isn't imported in the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.config.settings import MediaSettings
from penstock.media.desk import MediaDesk
from penstock.media.layout import layout
from penstock.media.sources import MediaSource
from penstock.model.media_facts import KindFacts, MediaFacts
from tests.shared.media.pictures import picture, saved
from tests.shared.media.pixel_cases import CASES

pytestmark = pytest.mark.timeout(60)


async def test_overlapping_crops_are_laid_out_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[threading.Thread] = []

    def looked_at(*given: Any) -> Any:
        found.append(threading.current_thread())
        return layout(*given)

    monkeypatch.setattr("penstock.media.desk.layout", looked_at)
    desk = MediaDesk(MediaSettings())
    try:
        for name in ("molmo2", "clip"):
            own = KindFacts(
                preparation=CASES[name][1], placeholder="<image>", token="<image>", token_id=1
            )
            facts = MediaFacts(kinds={"image": own})
            with desk.lease("") as lease:
                source = MediaSource("here", data=saved(picture(40, 30)))
                made = await desk.prepare(facts, [source], lease)
            assert made is not None
    finally:
        desk.close()
    main = threading.main_thread()
    assert [thread is main for thread in found] == [False, True]
