"""What `penstock doctor MODEL` says of a mixture of experts beside a card."""

from __future__ import annotations

from penstock.prepare.describe import Description, ExpertBytes
from penstock_worker.machine.environment_checks import Finding
from penstock_worker.machine.memory import free_memory

_GIB = 1 << 30


def experts_beside_card(about: Description, held: ExpertBytes | None) -> list[Finding]:
    """Returns a finding for a GGUF model with experts: what a card holds at least, and the host, if
    they lie in its memory (`--cpu-experts all`). `held`: what they take; None: that is unknown."""
    experts = about.experts
    if experts is None or held is None or about.format != "GGUF":
        return []
    fits = held.host < free_memory()
    text = (
        f"{held.host / _GIB:.2f} GiB in {experts.layers} layers; --device cuda --cpu-experts keeps "
        "them, or those of some layers, in the host's memory, and a card holds at least "
        f"{(about.size - held.file) / _GIB:.2f} GiB beside its KV cache; there, all of them take "
        f"{held.card / _GIB:.2f} GiB"
    )
    if not fits:
        text += f"; not all fit the host: {free_memory() / _GIB:.1f} GiB are free here"
    return [Finding("experts", True, text, "ok" if fits else "note")]
