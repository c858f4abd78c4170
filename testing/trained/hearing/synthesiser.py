"""A small formant synthesiser: digits as sound.

A voice's pulses and noise are shaped by the resonances of a vocal tract, which glide from one
speech sound's to the next's (Klatt, "Software for a cascade/parallel formant synthesizer", 1980;
the vowels' formants are those of Peterson and Barney, 1952, rounded).  The shaping is done in short
overlapping spectra, so that NumPy does all of it at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

RATE = 16_000
WINDOW, HOP = 512, 80
"""Samples of a spectrum, and from one to the next."""
GLIDE = 7
"""Hops over which one sound turns into the next."""


class Phone(NamedTuple):
    """A speech sound. seconds: at the usual pace.  voice, noise: loudness of either source.
    formants: Hz.  band: middle and width of the noise, Hz."""

    seconds: float
    voice: float
    noise: float
    formants: tuple[float, float, float]
    band: tuple[float, float] = (5000.0, 4000.0)


_NEUTRAL = (500.0, 1500.0, 2500.0)
PHONES = {
    "_": Phone(0.05, 0.0, 0.0, _NEUTRAL),
    "AH": Phone(0.11, 1.0, 0.0, (640, 1190, 2390)),
    "AO": Phone(0.14, 1.0, 0.0, (570, 840, 2410)),
    "AY1": Phone(0.11, 1.0, 0.0, (730, 1090, 2440)),
    "AY2": Phone(0.10, 0.9, 0.0, (400, 1950, 2550)),
    "EH": Phone(0.11, 1.0, 0.0, (530, 1840, 2480)),
    "EY1": Phone(0.09, 1.0, 0.0, (480, 1950, 2550)),
    "EY2": Phone(0.09, 0.9, 0.0, (330, 2200, 2800)),
    "IH": Phone(0.09, 1.0, 0.0, (390, 1990, 2550)),
    "IY": Phone(0.16, 1.0, 0.0, (270, 2290, 3010)),
    "OW1": Phone(0.10, 1.0, 0.0, (500, 900, 2400)),
    "OW2": Phone(0.09, 0.8, 0.0, (360, 800, 2300)),
    "UW": Phone(0.17, 1.0, 0.0, (300, 870, 2240)),
    "W": Phone(0.07, 0.6, 0.0, (290, 610, 2150)),
    "R": Phone(0.08, 0.7, 0.0, (330, 1060, 1380)),
    "N": Phone(0.09, 0.4, 0.0, (250, 1450, 2300)),
    "V": Phone(0.06, 0.35, 0.12, (280, 1100, 2080), (4000, 5000)),
    "Z": Phone(0.09, 0.3, 0.5, (250, 1390, 2530), (6000, 2500)),
    "S": Phone(0.13, 0.0, 0.9, _NEUTRAL, (6300, 2200)),
    "F": Phone(0.11, 0.0, 0.3, _NEUTRAL, (4500, 6000)),
    "TH": Phone(0.10, 0.0, 0.25, _NEUTRAL, (5500, 5000)),
    "T1": Phone(0.05, 0.0, 0.0, _NEUTRAL),
    "T2": Phone(0.035, 0.0, 1.0, _NEUTRAL, (4200, 2500)),
    "K1": Phone(0.06, 0.0, 0.0, _NEUTRAL),
    "K2": Phone(0.035, 0.0, 0.9, _NEUTRAL, (1900, 1200)),
}
DIGITS = {
    "zero": "Z IH R OW1 OW2",
    "one": "W AH N",
    "two": "T1 T2 UW",
    "three": "TH R IY",
    "four": "F AO R",
    "five": "F AY1 AY2 V",
    "six": "S IH K1 K2 S",
    "seven": "S EH V AH N",
    "eight": "EY1 EY2 T1 T2",
    "nine": "N AY1 AY2 N",
}


@dataclass(frozen=True, slots=True)
class Speaker:
    """pitch: Hz.  tract: by which formants are scaled.  pace: by which times are divided.  breath:
    noise in the voice."""

    pitch: float
    tract: float
    pace: float
    breath: float

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Speaker:
        return cls(
            pitch=float(np.exp(rng.uniform(np.log(85), np.log(240)))),
            tract=float(rng.uniform(0.87, 1.18)),
            pace=float(rng.uniform(0.8, 1.3)),
            breath=float(rng.uniform(0.0, 0.05)),
        )


def spoken(word: str, speaker: Speaker, rng: np.random.Generator) -> np.ndarray:
    """float32 samples of a digit."""
    phones = [PHONES[name] for name in DIGITS[word].split()]
    usual = np.array([phone.seconds for phone in phones]) * RATE / HOP / speaker.pace
    hops = np.maximum(2, np.round(usual * rng.uniform(0.85, 1.2, len(phones)))).astype(int)
    tracks = _smoothed(np.repeat([_numbers(phone, speaker, rng) for phone in phones], hops, axis=0))
    voice, noise = tracks[:, 0], tracks[:, 1]
    count = len(tracks) * HOP
    frequencies = np.fft.rfftfreq(WINDOW, 1 / RATE)
    pulses = _spectra(_pulses(speaker, count, rng) + speaker.breath * rng.normal(0, 1, count))
    hiss = _spectra(rng.normal(0, 0.25, count))
    shaped = pulses * _tract(tracks[:, 2:5], frequencies) * voice[:, None]
    shaped = shaped + hiss * _band(tracks[:, 5:7], frequencies) * noise[:, None]
    return _joined(shaped, count)


def _numbers(phone: Phone, speaker: Speaker, rng: np.random.Generator) -> list[float]:
    formants = [each * speaker.tract * rng.uniform(0.96, 1.04) for each in phone.formants]
    middle, width = phone.band
    return [phone.voice, phone.noise, *formants, middle * speaker.tract**0.5, width]


def _smoothed(tracks: np.ndarray) -> np.ndarray:
    """[hops, numbers]: means around each hop, so that sounds glide; silent ends."""
    edge = np.repeat(tracks[[0, -1]], GLIDE, axis=0)
    edge[:, :2] = 0.0
    padded = np.concatenate([edge[:GLIDE], tracks, edge[GLIDE:]])
    sums = np.concatenate([np.zeros((1, tracks.shape[1])), np.cumsum(padded, axis=0)])
    return (sums[GLIDE:] - sums[:-GLIDE]) / GLIDE


def _pulses(speaker: Speaker, count: int, rng: np.random.Generator) -> np.ndarray:
    """A voice without a tract: pulses whose pitch falls, and trembles a little."""
    fall = np.linspace(1.08, 0.88, count) * speaker.pitch
    knots = np.arange(0, count + 400, 400)
    tremble = 1 + 0.01 * np.interp(np.arange(count), knots, rng.normal(0, 1, len(knots)))
    phase = np.cumsum(fall * tremble) / RATE
    pulses = np.diff(np.floor(phase), prepend=0.0)
    # Two poles near 0 Hz, as a glottis has them: high tones are weaker.
    decay = np.exp(-np.arange(200) / 12.0) * np.arange(200)
    return np.asarray(np.convolve(pulses, decay / 12.0)[:count])


def _spectra(samples: np.ndarray) -> np.ndarray:
    """[hops, frequencies]."""
    padded = np.pad(samples, (WINDOW // 2, WINDOW))
    parts = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][: len(samples) // HOP]
    return np.asarray(np.fft.rfft(parts * np.hanning(WINDOW)))


def _tract(formants: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """[hops, frequencies]: three resonances and a fixed fourth, one behind the other."""
    found = np.ones((len(formants), len(frequencies)))
    fourth = np.full(len(formants), 3500.0)
    for middle, width in zip((*formants.T, fourth), (70.0, 100.0, 150.0, 250.0), strict=True):
        square = middle[:, None] ** 2
        distance = square - frequencies[None] ** 2
        found *= square / np.sqrt(distance**2 + (width * frequencies[None]) ** 2)
    return found


def _band(bands: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    middle, width = bands[:, :1], bands[:, 1:]
    return np.asarray(np.exp(-(((frequencies[None] - middle) / width) ** 2) * 2))


def _joined(spectra: np.ndarray, count: int) -> np.ndarray:
    """Overlapping parts added, with peaks at 0.5."""
    parts = np.fft.irfft(spectra, WINDOW) * np.hanning(WINDOW)
    out = np.zeros(count + 2 * WINDOW)
    for at, part in enumerate(parts):
        out[at * HOP : at * HOP + WINDOW] += part
    out = out[WINDOW // 2 : WINDOW // 2 + count]
    return np.asarray(0.5 * out / np.abs(out).max(), np.float32)
