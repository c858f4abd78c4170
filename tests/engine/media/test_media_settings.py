"""Settings of media that the model can't have are told before anything is started."""

from __future__ import annotations

import msgspec
import pytest

from penstock.config.settings import MediaSettings
from penstock.errors import StartupError
from tests.engine.small_facts import facts
from tests.shared.media.test_options import BOTH


def test_bounds_that_no_picture_fits_are_refused_at_the_start() -> None:
    made = facts(media=False)
    seeing = msgspec.structs.replace(made.model, media=BOTH)
    media = MediaSettings(mm_processor_kwargs='{"max_pixels": 500}')
    config = msgspec.structs.replace(made.config, media=media)
    with pytest.raises(StartupError, match=r"mm_processor_kwargs, for pictures: .* ascending"):
        msgspec.structs.replace(made, model=seeing, config=config)
    assert msgspec.structs.replace(made, model=seeing).model.media is BOTH
    assert msgspec.structs.replace(made, config=config).model.media is None
