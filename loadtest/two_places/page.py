"""The page: five cards, four models, two hosts. All figures are those of `penstock.recommend`."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.report.table import sections
from penstock.model.expert_room import COPY_PASSES, KV_SHARE, STEP_SHARE, THREAD_OPERATIONS
from penstock.recommend import beside_card
from penstock.recommend.beside_card import (
    BesideCard,
    ExpertShape,
    HostFigures,
    PlacedModel,
    place_experts,
)
from penstock.recommend.beside_fits import placed_model
from penstock.recommend.cards import (
    ARITHMETIC_SHARE,
    BANDWIDTH_SHARE,
    DEVICES,
    MEMORY_SHARE,
)
from penstock.recommend.fits import CONTEXT
from penstock.recommend.releases import RELEASES
from penstock_bench.load.report import markdown_table

CARDS = ("3060", "4090", "5080", "l4", "h200")
STREAMS = (1, 8, 32)
AT = 1024
"""Tokens before each sequence's own."""
PROMPT = 2048
HOSTS = {
    "A desktop": HostFigures(bandwidth=60, threads=16, memory=58),
    "A server": HostFigures(bandwidth=300, threads=32, memory=250),
}
_RELEASED = {release.name: release for release in RELEASES}
MODELS = {
    "Qwen3-30B-A3B, Q4_K_M": placed_model(_RELEASED["Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M"]),
    "Qwen3.6-35B-A3B, Q4_K_M": PlacedModel(
        layers=40,
        rest=1_617_592_064,
        read=1_323_581_184,
        kv_per_token=20_480,
        experts=ExpertShape(40, 256, 8, 1_945_600, 3_145_728, 2048, shared=1_946_784),
        card_share=0.979,
    ),
    "gpt-oss-120b, MXFP4": placed_model(_RELEASED["ggml-org/gpt-oss-120b-GGUF:MXFP4"]),
    "GLM-4.5-Air, Q4_K_M": placed_model(_RELEASED["unsloth/GLM-4.5-Air-GGUF:Q4_K_M"]),
}
ALL_ON_HOST = BesideCard(MODELS["Qwen3-30B-A3B, Q4_K_M"], DEVICES["4090"], HOSTS["A desktop"], 48)

_TOP = """# Experts in the host's memory: what a card and its host should serve

**Estimated, not measured**, by `python -m loadtest.two_places`: `penstock recommend` and \
`penstock plan` reckon the same. [How it works](../../docs/design/two-places.md)."""

_HEADS = (
    *("model", "card", "experts on the host", "GiB there"),
    *(f"tok/s, {streams}" for streams in STREAMS),
    f"prompt of {PROMPT:,}, tok/s",
)


def text() -> str:
    """Returns the page."""
    return sections((_TOP, *(_table(name) for name in HOSTS), _busy(), _assumptions()))


def _table(name: str) -> str:
    host = HOSTS[name]
    told = (
        f"## {name}\n\n{host.threads} threads, {host.bandwidth:g} GB/s, {host.memory:g} GB free. "
        f"Tokens per second of all streams together, after {AT:,} tokens each; `--cpu-experts auto`"
        f" with room for {CONTEXT:,} tokens.\n\n"
    )
    return told + markdown_table(list(_HEADS), list(_rows(host)))


def _rows(host: HostFigures) -> Iterator[list[str]]:
    for model_name, model in MODELS.items():
        for card_name in CARDS:
            card = DEVICES[card_name]
            placed = place_experts(model, card, host, CONTEXT)
            beside = BesideCard(model, card, host, placed.on_host)
            held = placed.on_host * model.experts.count * model.experts.nbytes
            first = [
                model_name,
                f"{card_name}, {card.memory:g} GB",
                f"{placed.on_host} of {model.experts.layers} layers",
                f"{held / 2**30:.1f}",
            ]
            if placed.fits:
                speeds = [beside.decoded(streams, AT) for streams in STREAMS]
                yield [
                    *first,
                    *(f"{each:,.0f}" for each in speeds),
                    f"{beside.prompt(PROMPT):,.0f}",
                ]
            else:
                missing = (placed.card_missing + placed.host_missing) / 2**30
                yield [*first, f"{missing:.1f} GiB missing", "", "", ""]


def _busy() -> str:
    rows = []
    for streams in (*STREAMS, 128):
        step = ALL_ON_HOST.step(streams, streams, AT)
        shares = [step.busy["card"], step.busy["host"], step.either]
        row = [f"{streams}", *(f"{share / step.whole:.0%}" for share in shares)]
        halves = step.whole / ALL_ON_HOST.step(streams, streams, AT, 2).whole if streams > 1 else 1
        rows.append([*row, f"{halves:.2f} ×" if streams > 1 else "-"])
    heads = ["streams", "card busy", "host busy", "either", "speed with half batches"]
    return (
        "## Who waits\n\nQwen3-30B-A3B with all experts on the desktop, beside a 4090: shares of a "
        "decode step. With half batches the host reads experts that both halves have twice, which "
        "costs more than the card's share could save.\n\n" + markdown_table(heads, rows)
    )


def _assumptions() -> str:
    rows = [
        ["share of a card's memory that is used", f"{MEMORY_SHARE:g}"],
        ["of this, for the KV cache at least; for steps", f"{KV_SHARE:g}; {STEP_SHARE:g}"],
        ["share of a card's memory rate that kernels reach", f"{BANDWIDTH_SHARE:g}"],
        ["share of its arithmetic in bfloat16", f"{ARITHMETIC_SHARE:g}"],
        ["share of the bus's standard that copies reach", f"{beside_card.LINK_SHARE:g}"],
        ["share of the host's memory rate", f"{beside_card.HOST_SHARE:g}"],
        ["times that a copied byte passes the host's memory", f"{COPY_PASSES}"],
        ["operations per second of a thread, 10^12", f"{THREAD_OPERATIONS / 1e12:g}"],
        ["µs of a way between card and host, beside its bytes", f"{beside_card.HAND_OVER * 1e6:g}"],
        [
            "kernels of a layer, and of its shared experts",
            f"{beside_card.KERNELS}, {beside_card.SHARED_KERNELS}",
        ],
        [
            "µs of each, launched by itself; in a graph",
            f"{beside_card.LAUNCH * 1e6:g}; {beside_card.IN_GRAPH * 1e6:g}",
        ],
    ]
    cards = [
        [name, f"{card.memory:g}", f"{card.bandwidth:,g}", f"{card.tflops:g}", f"{card.link:g}"]
        for name, card in ((name, DEVICES[name]) for name in CARDS)
    ]
    heads = ["card", "GB", "GB/s", "TFLOPS, dense, float32 sums", "GB/s to the host"]
    return (
        "## Assumptions\n\nRouters choose all experts evenly: real ones prefer some, of which a "
        "step then reads fewer. Sizes are those of the CPU's kernels; Qwen3.6-35B-A3B has the "
        "shape of Qwen3.5-35B-A3B. While one buffer of experts is copied, the card computes with "
        "the other."
        "\n\n" + markdown_table(["assumption", ""], rows) + "\n\n" + markdown_table(heads, cards)
    )
