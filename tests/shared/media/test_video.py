"""Videos: which frames are shown, what becomes of them, and what is refused."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import AsyncIterator, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from penstock.forms.geometry import BadShape
from penstock.forms.video import FrameSampling, VideoShape
from penstock.media.picture import BadPicture
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.prepared import read
from penstock.media.sampling import sampled
from penstock.media.video import picture_frames, prepare_clip, prepare_frames, raw_frames
from penstock.media.wire import Prepare, ProcessBounds
from testing.damage import damaged
from tests import thinning
from tests.shared.media.pictures import saved
from tests.shared.media.videos import BOUNDS, VIDEO, movie, noise

SIX = msgspec.structs.replace(VIDEO, sampling=FrameSampling(num_frames=6))


def raw(frames: np.ndarray, rate: tuple[int, int] = (2, 1)) -> tuple[bytes, tuple[int, ...]]:
    return frames.tobytes(), (frames.shape[2], frames.shape[1], *rate)


def test_frames_are_those_of_transformers() -> None:
    """torch.arange over the frames, as its video processor has it; it may be one too long there,
    and then name a frame that there isn't."""
    for total in range(2, 300):
        for wanted in (2, 4, 8, 32):
            if wanted >= total:
                continue
            found = sampled(total, Fraction(10), FrameSampling(num_frames=wanted), 2)
            theirs = torch.arange(0, total, total / wanted).int().tolist()
            assert list(found) == theirs[:wanted]
            assert len(theirs) - wanted in (0, 1)


@pytest.mark.parametrize(
    ("total", "rate", "sampling", "count"),
    [
        (100, 10, FrameSampling(num_frames=0, fps=1), 10),
        (100, 10, FrameSampling(num_frames=0, fps=0.1), 4),  # min_frames
        (100, 10, FrameSampling(num_frames=0, fps=9, max_frames=21), 20),
        (100, 10, FrameSampling(num_frames=6, fps=1), 6),
        (100, 10, FrameSampling(num_frames=0), 100),
        (100, 10, FrameSampling(num_frames=7), 6),
        (5, 10, FrameSampling(num_frames=32), 4),
        (1, 10, FrameSampling(num_frames=32), 1),
        (100, 10, FrameSampling(num_frames=0, fps=1, spread="ends"), 10),
    ],
)
def test_how_many_frames(total: int, rate: int, sampling: FrameSampling, count: int) -> None:
    found = sampled(total, Fraction(rate), sampling, 2)
    assert len(found) == count == len(set(found))
    assert list(found) == sorted(found)
    assert 0 <= found[0] <= found[-1] < total


@pytest.mark.parametrize("count", [1, 4, 5])
@pytest.mark.parametrize("size", [(30, 44), (100, 40), (56, 56)])
def test_numbers_are_those_of_transformers(count: int, size: tuple[int, int]) -> None:
    """Its processor of pictures repeats a picture where a video has two frames: so the two are put
    together of two pictures' patches."""
    frames = noise(count, *size)
    theirs = Qwen2VLImageProcessorPil(
        size={"shortest_edge": VIDEO.min_pixels, "longest_edge": VIDEO.max_pixels},
        patch_size=VIDEO.patch,
        image_mean=VIDEO.pixels.mean,
        image_std=VIDEO.pixels.std,
    )
    arrays, shape = prepare_frames(VIDEO, raw_frames(*raw(frames)), BOUNDS)
    found = VIDEO.inputs(arrays)
    alone = [theirs(Image.fromarray(frame)) for frame in [*frames, frames[-1]]]
    side = VIDEO.patch
    groups = []
    for at in range(0, count, 2):
        pair = [
            np.asarray(alone[min(number, count - 1)]["pixel_values"]).reshape(-1, 3, 2, side, side)[
                :, :, 0
            ]
            for number in (at, at + 1)
        ]
        groups.append(np.stack(pair, axis=2).reshape(len(pair[0]), -1))
    assert np.array_equal(found["pixel_values"], np.concatenate(groups))
    (grid,) = np.asarray(alone[0]["image_grid_thw"])
    assert found["grid_thw"].tolist() == [len(groups), grid[1], grid[2]]
    assert VIDEO.grid(shape) == (len(groups), grid[1] // 2, grid[2] // 2)


def test_resizing_is_within_a_level_of_torch() -> None:
    """transformers' video processor resizes by this operation of torch's."""
    frames = noise(3, 90, 130, 4)
    arrays, _ = prepare_frames(VIDEO, raw_frames(*raw(frames)), BOUNDS)
    found = arrays["frames"]
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous(),
        size=found.shape[1:3],
        mode="bicubic",
        antialias=True,
    )
    difference = theirs.permute(0, 2, 3, 1).numpy().astype(int) - found.astype(int)
    assert np.abs(difference).max() <= 1


def test_positions_in_time() -> None:
    timed = msgspec.structs.replace(VIDEO, positions_per_second=2.0)
    size = 56, 56  # 4 x 4 merged patches
    at_two = VideoShape(*size, 8, Fraction(2), tuple(range(8)))
    assert VIDEO.grid(at_two) == (4, 4, 4)
    assert timed.grid(at_two) == (4, 4, 4, 2, 1)
    sparse = VideoShape(
        *size, 240, Fraction(24), tuple(range(0, 240, 40))
    )  # 10 s, 6 frames: 3 1/3 s of two
    assert timed.grid(sparse) == (3, 4, 4, 20, 3)
    assert VideoShape.of(sparse.flat()) == sparse
    with pytest.raises(BadShape, match="its frames lie 100 s apart"):
        timed.grid(VideoShape(*size, 24 * 100, Fraction(24), (0, 1200)))


def test_all_frames_share_a_budget() -> None:
    capped = msgspec.structs.replace(VIDEO, all_pixels=28 * 42 * 8)
    for frames, size in ((1, (56, 56)), (8, (28, 42)), (64, (28, 28))):
        assert capped.frame_size((80, 80) if frames != 8 else (60, 90), frames) <= size


@pytest.mark.parametrize(
    ("size", "frames", "true"),
    [
        ((480, 640), 8, (256, 352)),
        ((100, 900), 5, (96, 896)),
        ((17, 20), 2, (352, 416)),
        ((1080, 1920), 64, (64, 128)),
    ],
)
def test_frames_of_a_video_as_a_whole(
    size: tuple[int, int], frames: int, true: tuple[int, int]
) -> None:
    """What Qwen3-VL's smart_resize gives in transformers."""
    whole = msgspec.structs.replace(
        VIDEO, patch=16, of_all=True, min_pixels=128 * 32 * 32 * 2, max_pixels=32 * 32 * 768
    )
    assert whole.frame_size(size, frames) == true
    with pytest.raises(BadShape, match="at least 2"):
        whole.frame_size(size, 1)


def test_pictures_make_a_video() -> None:
    frames = noise(3)
    files = [saved(Image.fromarray(frame)) for frame in frames]
    parts = tuple(map(len, files))
    found = prepare_frames(VIDEO, picture_frames(b"".join(files), parts, BOUNDS), BOUNDS)
    true = prepare_frames(VIDEO, raw_frames(*raw(frames)), BOUNDS)
    assert np.array_equal(found[0]["frames"], true[0]["frames"])
    assert found[1] == true[1]
    files[1] = saved(Image.fromarray(noise(1, 44, 30)[0]))
    parts = tuple(map(len, files))
    with pytest.raises(BadPicture, match="must be of one size"):
        prepare_frames(VIDEO, picture_frames(b"".join(files), parts, BOUNDS), BOUNDS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"frames": 3}, "shows 4 frames; at most 3"),
        ({"all_pixels": 1000}, "--max-video-pixels"),
    ],
)
def test_bounds_of_frames(change: dict[str, int], reason: str) -> None:
    bounds = msgspec.structs.replace(BOUNDS, **change)
    with pytest.raises(BadPicture, match=reason):
        prepare_frames(VIDEO, raw_frames(*raw(noise(4))), bounds)


def test_frames_that_are_none() -> None:
    for data, sizes in ((b"abc", (2, 2, 1, 1)), (b"", (2, 2, 1, 1)), (bytes(12), (0, 2, 1, 1))):
        with pytest.raises(BadPicture):
            prepare_frames(VIDEO, raw_frames(data, sizes), BOUNDS)


# ---- files


def slow(data: bytes) -> list[np.ndarray]:
    """All frames, one after the other."""
    import av

    with av.open(io.BytesIO(data)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


FILES = [("libx264", "mp4"), ("libvpx-vp9", "webm"), ("mjpeg", "avi"), ("gif", "gif")]


@pytest.mark.parametrize(("codec", "kind"), FILES)
@pytest.mark.parametrize("wanted", [(0, 13, 14, 30, 49), (49,), (5, 40)])
def test_frames_of_a_file(codec: str, kind: str, wanted: tuple[int, ...]) -> None:
    """Frames that are found by key frames are those that all of it has."""
    pytest.importorskip("av")
    from penstock.media.clip import Clip

    data = movie(codec, kind)
    true = slow(data)
    with Clip(data, seconds=60, max_pixels=1 << 20) as clip:
        assert (clip.total, clip.rate, clip.size) == (50, 10, (64, 96))
        found = [np.asarray(frame) for frame in clip.frames(wanted)]
    assert len(found) == len(wanted)
    assert all(np.array_equal(found[at], true[number]) for at, number in enumerate(wanted))


def test_a_file_becomes_frames() -> None:
    pytest.importorskip("av")
    data = movie()
    arrays, shape = prepare_clip(SIX, data, BOUNDS)
    numbers = [0, 8, 16, 25, 33, 41]
    true = np.stack([slow(data)[number] for number in numbers])
    expected, _ = prepare_frames(SIX, raw_frames(*raw(true)), BOUNDS)
    assert np.array_equal(arrays["frames"], expected["frames"])
    assert shape == VideoShape(64, 96, 50, Fraction(10), (0, 8, 16, 25, 33, 41))


def test_a_file_that_is_cut_off_has_the_frames_that_are_there() -> None:
    pytest.importorskip("av")
    data = movie("libvpx-vp9", "webm")
    arrays, shape = prepare_clip(SIX, data[: len(data) // 2], BOUNDS)
    assert len(arrays["frames"]) == 6
    assert 6 <= shape.total < 50
    with pytest.raises(BadPicture):
        prepare_clip(SIX, data[:100], BOUNDS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seconds": 4.0}, r"lasts 5.0 s; at most 4 s"),
        ({"pixels": 6000}, r"frames of 96 × 64 pixels; at most 6000"),
        ({"frames": 5}, "shows 6 frames"),
        ({"all_pixels": 1000}, "--max-video-pixels"),
    ],
)
def test_bounds_of_a_file(change: dict[str, float], reason: str) -> None:
    pytest.importorskip("av")
    with pytest.raises(BadPicture, match=reason):
        prepare_clip(SIX, movie(), msgspec.structs.replace(BOUNDS, **change))


def test_a_head_that_lies_about_the_size_of_frames() -> None:
    """For each frame that is shown the bound counts what was decoded."""
    pytest.importorskip("av")
    from penstock.media.clip import Clip

    data = movie("libvpx", "webm", count=4, size=(640, 480))
    for true, lie in (
        (b"\xb0\x82\x02\x80", b"\xb0\x82\x00\x70"),
        (b"\xba\x82\x01\xe0", b"\xba\x82\x00\x70"),
    ):
        assert data.count(true) == 1
        data = data.replace(true, lie)
    large = msgspec.structs.replace(VIDEO, max_pixels=1 << 20)
    bounds = msgspec.structs.replace(BOUNDS, all_pixels=4 * 112 * 112)
    with Clip(data, seconds=60, max_pixels=1 << 20) as clip:
        assert clip.size == (112, 112)
    with pytest.raises(BadPicture, match=r"becomes 4 frames of 6\d\d × 4\d\d .*--max-video-pixels"):
        prepare_clip(large, data, bounds)


class _Short:
    """A file, of which so many packets and frames can be had before memory is out."""

    def __init__(self, file: Any, packets: int, frames: int) -> None:
        self._file = file
        self._packets = packets
        self._frames = frames

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def demux(self) -> Iterator[Any]:
        return _until(self._file.demux(), self._packets)

    def decode(self, stream: Any) -> Iterator[Any]:
        return _until(self._file.decode(stream), self._frames)


def _until(found: Iterator[Any], count: int) -> Iterator[Any]:
    import av

    yield from islice(found, count)
    raise av.error.MemoryError(12, "Cannot allocate memory")


@pytest.mark.parametrize(("packets", "frames"), [(5, 100), (100, 1), (100, 5)])
def test_out_of_memory_is_no_damage(
    monkeypatch: pytest.MonkeyPatch, packets: int, frames: int
) -> None:
    """What would be made up then, frames that are repeated, would be kept for later requests."""
    pytest.importorskip("av")
    from penstock.media.clip import Clip

    opened = Clip._opened
    monkeypatch.setattr(Clip, "_opened", lambda clip: _Short(opened(clip), packets, frames))
    with pytest.raises(MemoryError):
        prepare_clip(SIX, movie(), BOUNDS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no video",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<?xml version='1.0'?><MPD></MPD>",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 4 RTP/AVP 96\n",
    ],
)
def test_what_is_no_video_is_refused(data: bytes) -> None:
    """Playlists too, which would lead to other files."""
    pytest.importorskip("av")
    with pytest.raises(BadPicture, match="has an unsupported format"):
        prepare_clip(VIDEO, data, BOUNDS)


def test_without_pyav_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(BadPicture, match=r"penstock-llm\[video\]"):
        prepare_clip(VIDEO, b"whatever", BOUNDS)


@pytest.fixture
async def pool() -> AsyncIterator[MediaPool]:
    pool = MediaPool(ProcessBounds(memory=1 << 30, cpu=20.0), 1)
    yield pool
    pids = pool.pids
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_process_prepares_videos(pool: MediaPool) -> None:
    frames = noise(4)
    data, shape = raw(frames)
    answer = await pool.prepare(Prepare(VIDEO, data, BOUNDS, shape))
    true, sizes = prepare_frames(VIDEO, raw_frames(data, shape), BOUNDS)
    assert np.array_equal(read(answer.data)["frames"], true["frames"])
    assert VideoShape.of(answer.shape) == sizes
    with pytest.raises(Unpreparable, match=r"unsupported format"):
        await pool.prepare(Prepare(VIDEO, b"no video", BOUNDS))
    pytest.importorskip("av")
    answer = await pool.prepare(Prepare(SIX, movie(), BOUNDS))
    assert np.array_equal(
        read(answer.data)["frames"], prepare_clip(SIX, movie(), BOUNDS)[0]["frames"]
    )
    assert len(pool.pids) == 1


async def test_damaged_files_hurt_nobody(pool: MediaPool) -> None:
    """Each is a video or refused, and the process goes on."""
    pytest.importorskip("av")
    chance = random.Random(7)
    kinds = [movie(codec, kind, count=12) for codec, kind in FILES[:3]]
    for number in range(thinning.part(3000, 1 / 100)):
        data = damaged(kinds[number % 3], chance)
        try:
            answer = await pool.prepare(Prepare(SIX, data, BOUNDS))
            assert read(answer.data)["frames"].shape[3] == 3
        except Unpreparable:
            pass
    await pool.prepare(Prepare(SIX, kinds[0], BOUNDS))
