"""Phi-4-multimodal's spectrograms, and what becomes of a sound that stands beside pictures."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from transformers import Phi4MultimodalFeatureExtractor

from penstock.forms.pixels import Pixels
from penstock.forms.sheets import SheetImages
from penstock.media.item_names import preparation_digest
from penstock.media.layout import beside_others
from penstock.media.log_mel import BESIDE, LOG_MEL
from penstock.media.magnitudes import hamming_mel
from penstock.media.pool import MediaPool
from penstock.media.prepared import read
from penstock.media.sound import open_sound
from penstock.media.wire import ItemBounds, Prepare, ProcessBounds
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.model.sound_facts import BadLength, HammingMel
from tests.shared.media.sounds import RATE, saved_sound, sound

MEL = HammingMel(
    sampling_rate=RATE,
    bins=80,
    lowest=0.0,
    highest=7690.0,
    frame=400,
    hop=160,
    n_fft=512,
    emphasis=0.97,
    reduced=8,
)


@pytest.mark.parametrize("bins", [80, 12])
def test_windows_are_those_of_transformers(bins: int) -> None:
    theirs = Phi4MultimodalFeatureExtractor(feature_size=bins)
    mel = msgspec.structs.replace(MEL, bins=bins)
    for samples in (400, 559, 560, 7777, 16_000, 41 * RATE):
        given = sound(samples / RATE)[:samples]
        wanted = theirs(given, sampling_rate=RATE, return_tensors="np")
        found = hamming_mel(mel, given)
        assert found.dtype == np.float32
        assert found.shape == (1, bins, wanted["audio_input_features"].shape[1])
        assert np.abs(found[0].T - wanted["audio_input_features"][0]).max() < 1e-4
        assert mel.embeddings(samples) == wanted["audio_embed_sizes"][0]
    with pytest.raises(BadLength, match="400 at least"):
        MEL.embeddings(399)


async def test_a_sound_beside_pictures_is_another_item() -> None:
    """Its encoding isn't that of the same sound in a prompt without pictures."""
    pictures = SheetImages(pixels=Pixels(resample=2), tile=448, patch=14)
    facts = MediaFacts(
        kinds={
            "audio": KindFacts(preparation=MEL, placeholder="a", token="a", token_id=1),
            "image": KindFacts(preparation=pictures, placeholder="b", token="b", token_id=2),
        }
    )
    assert beside_others(facts, ("audio",)) is facts
    beside = beside_others(facts, ("audio", "image")).kinds["audio"].preparation
    assert isinstance(beside, HammingMel)
    assert beside == msgspec.structs.replace(MEL, beside_pictures=True)
    assert preparation_digest(beside) != preparation_digest(MEL)
    pool, data = MediaPool(ProcessBounds(memory=1 << 30, cpu=20.0), 1), saved_sound(sound(0.2))
    try:
        alone, other = [
            read((await pool.prepare(Prepare(mel, data, ItemBounds(1, 5.0)))).data)
            for mel in (MEL, beside)
        ]
    finally:
        pool.close()
    assert (set(alone), set(other)) == ({LOG_MEL}, {LOG_MEL, BESIDE})
    assert np.array_equal(alone[LOG_MEL], hamming_mel(MEL, open_sound(data, RATE, 5.0)))
    assert np.array_equal(alone[LOG_MEL], other[LOG_MEL])
