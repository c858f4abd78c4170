"""Well-known releases that Penstock serves, with what decides about memory and speed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.recommend.beside_card import ExpertShape


@dataclass(frozen=True)
class KnownRelease:
    """Sizes are in bytes. Those in memory are a CPU's, whose kernels keep a format's levels, yet
    not its blocks: of Q4_K_M they make 6 and 10 bits a weight (docs/guides/choosing-a-model.md)."""

    name: str
    """What `serve` takes."""
    parameters: int
    download: int
    """The size of its tensors; the file holds a tokenizer too."""
    weights: int
    """The size of its weights in memory."""
    read: int
    """The part of them that a token reads: not the embedding unless it is the head too, and of
    experts as many as serve a token."""
    kv_per_token: int
    """Keys and values of all layers in bfloat16."""
    layers: int
    vocabulary: int
    experts: ExpertShape | None = None
    """Of a mixture of experts."""


RELEASES = (
    KnownRelease(
        "ggml-org/gpt-oss-120b-GGUF:MXFP4",
        parameters=116_829_156_672,
        download=63_257_372_928,
        weights=74_006_915_328,
        read=3_926_478_528,
        kv_per_token=73_728,
        layers=36,
        vocabulary=201_088,
        experts=ExpertShape(36, 128, 4, 15_561_180, 24_891_840, 2880),
    ),
    KnownRelease(
        "unsloth/GLM-4.5-Air-GGUF:Q4_K_M",
        parameters=106_852_245_504,
        download=64_412_321_792,
        weights=65_825_548_288,
        read=7_933_765_632,
        kv_per_token=188_416,
        layers=46,
        vocabulary=151_552,
        experts=ExpertShape(45, 128, 8, 10_654_242, 17_301_504, 4096, shared=10_654_242),
    ),
    KnownRelease(
        "Qwen/Qwen3-32B-GGUF:Q4_K_M",
        parameters=32_762_123_264,
        download=19_756_174_336,
        weights=20_187_759_616,
        read=19_738_029_056,
        kv_per_token=262_144,
        layers=64,
        vocabulary=151_936,
    ),
    KnownRelease(
        "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M",
        parameters=30_532_122_624,
        download=18_550_716_416,
        weights=18_946_828_288,
        read=1_956_952_064,
        kv_per_token=98_304,
        layers=48,
        vocabulary=151_936,
        experts=ExpertShape(48, 128, 8, 2_918_400, 4_718_592, 2048),
    ),
    KnownRelease(
        "ggml-org/gpt-oss-20b-GGUF:MXFP4",
        parameters=20_914_757_184,
        download=12_077_066_496,
        weights=13_868_656_896,
        read=2_796_214_656,
        kv_per_token=49_152,
        layers=24,
        vocabulary=201_088,
        experts=ExpertShape(24, 32, 4, 15_561_180, 24_891_840, 2880),
    ),
    KnownRelease(
        "Qwen/Qwen3-14B-GGUF:Q4_K_M",
        parameters=14_768_307_200,
        download=8_995_793_920,
        weights=9_184_896_000,
        read=8_735_165_440,
        kv_per_token=163_840,
        layers=40,
        vocabulary=151_936,
    ),
    KnownRelease(
        "Qwen/Qwen3-8B-GGUF:Q4_K_M",
        parameters=8_190_735_360,
        download=5_021_827_072,
        weights=5_124_743_168,
        read=4_764_958_720,
        kv_per_token=147_456,
        layers=36,
        vocabulary=151_936,
    ),
    KnownRelease(
        "Qwen/Qwen3-4B-GGUF:Q4_K_M",
        parameters=4_022_468_096,
        download=2_491_323_904,
        weights=2_540_353_024,
        read=2_540_353_024,
        kv_per_token=147_456,
        layers=36,
        vocabulary=151_936,
    ),
    KnownRelease(
        "Qwen/Qwen3-1.7B-GGUF:Q8_0",
        parameters=1_720_574_976,
        download=1_828_474_880,
        weights=1_828_474_880,
        read=1_828_474_880,
        kv_per_token=114_688,
        layers=28,
        vocabulary=151_936,
    ),
    KnownRelease(
        "Qwen/Qwen3-0.6B-GGUF:Q8_0",
        parameters=596_049_920,
        download=633_495_552,
        weights=633_495_552,
        read=633_495_552,
        kv_per_token=114_688,
        layers=28,
        vocabulary=151_936,
    ),
    KnownRelease(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M",
        parameters=494_032_768,
        download=485_452_288,
        weights=486_678_016,
        read=393_085_440,
        kv_per_token=12_288,
        layers=24,
        vocabulary=151_936,
    ),
    KnownRelease(
        "smollm2-135m",
        parameters=134_515_008,
        download=96_576_768,
        weights=96_576_768,
        read=96_576_768,
        kv_per_token=23_040,
        layers=30,
        vocabulary=49_152,
    ),
)
"""The one with the most parameters first. The last is the default, which is a demonstration."""

BETTER = ("Qwen/Qwen3-4B-GGUF:Q4_K_M", "Qwen/Qwen3-8B-GGUF:Q4_K_M")
"""What the page names where the demonstration is served."""
