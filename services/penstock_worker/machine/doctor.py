"""What this machine can do for a worker, and why not: `penstock doctor`."""

from __future__ import annotations

import platform
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

from penstock.config.settings import CacheSettings, ModelImpl, SchedulerSettings
from penstock.errors import PenstockError
from penstock.model.config import EncoderConfig, ModelConfig, TransformersConfig
from penstock.model.kv_layout import NO_GROUP, kv_layout, state_memory
from penstock.model.mechanisms import mechanisms
from penstock.model.prepared_model import PreparedModel
from penstock.model.sharing import one_rank_only
from penstock.prepare import load_manifest, prepare
from penstock.prepare.describe import Description, computed_by, describe
from penstock.process.machine import usable_cores
from penstock.process.numa import describe as describe_nodes
from penstock.process.numa import one_rank_per_node, usable_nodes, written
from penstock_worker.forward.backends import backend_module
from penstock_worker.forward.interface import Unable
from penstock_worker.loading.pooling import require_encoder
from penstock_worker.loading.tensors import cpu_bytes, expert_bytes, refusal
from penstock_worker.machine import environment_checks
from penstock_worker.machine.environment_checks import Advice, Finding
from penstock_worker.machine.expert_check import experts_beside_card
from penstock_worker.machine.memory import free_memory
from penstock_worker.machine.start_check import examine_start
from penstock_worker.media.memory import held_bytes, load_bytes, media_rows

# Which backends can serve a model on this machine, and what it takes: `penstock doctor MODEL`.

BACKENDS = ("triton", "cpu", "reference")
"""The backends, the fastest first."""
MIB, GIB = 1 << 20, 1 << 30
ROW_NUMBER = 4
"""Bytes of a number of an encoding: float32 on a CPU, and no more elsewhere."""
AnyConfig = ModelConfig | EncoderConfig | TransformersConfig


def examine_started(
    model: str,
    model_impl: ModelImpl = "auto",
    *,
    language_model_only: bool = False,
    mmproj: str | None = None,
    overrides: str = "",
) -> list[Finding]:
    """Where the time of a real start of the model goes. Never raises."""
    try:
        folder = prepare(
            model,
            model_impl=model_impl,
            language_model_only=language_model_only,
            mmproj=mmproj,
            overrides=overrides,
        )
        files = load_manifest(folder).weights.files
    except PenstockError as error:
        return [Finding("model", False, str(error), "missing")]
    flags = ["--model-impl", model_impl]
    flags += ["--language-model-only"] if language_model_only else []
    flags += [] if mmproj is None else ["--mmproj", mmproj]
    flags += ["--hf-overrides", overrides] if overrides else []
    return examine_start(model, flags, files)


def examine_model(
    model: str,
    model_impl: ModelImpl = "auto",
    *,
    language_model_only: bool = False,
    mmproj: str | None = None,
    overrides: str = "",
) -> list[Finding]:
    """The model's memory and its needs, then a finding for each backend. model, model_impl,
    language_model_only, mmproj, overrides: as serve takes them; the weights aren't read. Never
    raises."""
    try:
        folder = prepare(
            model,
            model_impl=model_impl,
            language_model_only=language_model_only,
            mmproj=mmproj,
            overrides=overrides,
        )
        prepared = load_manifest(folder)
        about = describe(folder, prepared)
    except PenstockError as error:
        return [Finding("model", False, str(error), "missing")]
    findings = [Finding("model", True, f"{about.name}, {about.family}, {about.weights}")]
    level: Literal["ok", "note"] = "ok" if about.implementation == "penstock" else "note"
    findings.append(Finding("implementation", True, computed_by(prepared), level))
    refused = refusal(prepared)
    held = None if refused else cpu_bytes(prepared)
    findings.append(_memory(about, prepared.config, held))
    findings += experts_beside_card(about, None if refused else expert_bytes(prepared))
    findings += _placement(prepared)
    if isinstance(prepared.config, TransformersConfig):
        said = refused or f"has {prepared.config.architecture}"
        return [*findings, Finding("transformers", not refused, said, _level(refused))]
    said = refused or "those that the configuration asks for"
    findings.append(Finding("tensors", not refused, said, _level(refused)))
    config = prepared.config
    needed = mechanisms(config.layers if isinstance(config, EncoderConfig) else config)
    findings.append(Finding("needs", True, _listed(needed) or "nothing beyond Llama's layers"))
    findings += _media(prepared)
    if isinstance(config, EncoderConfig):
        return [*findings, *(_encoders_backend(name, prepared, config) for name in BACKENDS)]
    return [*findings, *(_backend(name, config) for name in BACKENDS)]


def _media(prepared: PreparedModel) -> list[Finding]:
    """What media take, if the model takes any."""
    config = prepared.config
    if config.encoder_rows and prepared.media is None:
        said = "all prompts begin with a sound, and its files don't say how sounds are prepared"
        return [Finding("media", False, said, "missing")]
    if not config.takes_media:
        return []
    if prepared.media is None:
        said = "it could take some, but its files don't say how they are prepared: text only"
        return [Finding("media", True, said, "note")]
    rows = media_rows(config, config.max_position, ROW_NUMBER)
    size = rows * config.media_width * ROW_NUMBER
    load = load_bytes(config, config.max_position, CacheSettings().media_load_mib * MIB)
    size += held_bytes(load)
    held = f"{size / MIB:.0f} MiB for {rows} rows of encodings, and items that wait"
    if config.encoder_rows:
        return [Finding("media", True, held)]
    return [Finding("media", True, f"{held}; --language-model-only leaves its tower out")]


def _windows(config: AnyConfig) -> str:
    """How many layers keep a part of the context only, and which; empty: none does."""
    if not isinstance(config, ModelConfig):
        return ""
    layout = kv_layout(config, config.max_position)
    found = Counter(layout.groups[group] for group in layout.layers if group != NO_GROUP)
    spans = [(group.window or group.chunk, count) for group, count in found.items()]
    kept = [f"the last {span} in {count} layers" for span, count in spans if span is not None]
    return f" (kept: {', '.join(kept)})" if kept else ""


def _states(about: Description, config: AnyConfig) -> tuple[int, str]:
    """Bytes that recurrent states take with the usual settings, and words about it."""
    if not about.state_bytes or not isinstance(config, ModelConfig):
        return 0, ""
    usual = SchedulerSettings()
    seqs = usual.max_num_seqs
    whole = state_memory(config, seqs, usual.max_num_batched_tokens)
    said = f", states {about.state_bytes / MIB:.1f} MiB a sequence, {whole / GIB:.2f} GiB for"
    return whole, f"{said} {seqs} of them and copies"


def _memory(about: Description, config: AnyConfig, held: int | None) -> Finding:
    """held: bytes of the weights in the CPU kernels' layouts; None: unknown."""
    windows, (taken, states) = _windows(config), _states(about, config)
    on_cpu = "" if held is None else f" ({held / GIB:.2f} GiB on the CPU)"
    text = (
        f"weights {about.size / GIB:.2f} GiB{on_cpu}, keys and values "
        f"{about.kv_bytes_per_token / 1024:.0f} KiB a token, {about.kv_bytes / GIB:.2f} GiB for "
        f"{about.context} tokens{windows}{states}; {free_memory() / GIB:.1f} GiB free"
    )
    fits = max(about.size, held or 0) + taken < free_memory()
    return Finding("memory", fits, text, "ok" if fits else "missing")


def _level(refused: str) -> Literal["ok", "missing"]:
    return "missing" if refused else "ok"


def _backend(name: str, config: ModelConfig) -> Finding:
    """A backend that lacks something is worth a note: another one serves."""
    try:
        module = backend_module(name)
    except ImportError as error:
        return _not_here(name, error)
    lacking = mechanisms(config) - module.MECHANISMS
    return Finding(name, True, f"lacks {_listed(lacking)}", "note") if lacking else _able(name)


def _encoders_backend(name: str, prepared: PreparedModel, config: EncoderConfig) -> Finding:
    try:
        require_encoder(name, prepared, config)
    except ImportError as error:
        return _not_here(name, error)
    except Unable as error:
        return Finding(name, True, f"can't run it: {error}", "note")
    return _able(name)


def _not_here(name: str, error: ImportError) -> Finding:
    return Finding(name, True, f"can't run here: {error}", "note")


def _able(name: str) -> Finding:
    if name == "triton" and not _has_gpu():
        return Finding(name, True, "has all that the model needs, and there is no GPU here", "note")
    return Finding(name, True, "has all that the model needs")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def examine(
    model: str | None = None,
    model_impl: ModelImpl = "auto",
    *,
    language_model_only: bool = False,
    mmproj: str | None = None,
    overrides: str = "",
) -> list[Finding]:
    """Returns all findings, the most important first; a model's, if one is named. model_impl: whose
    code describes its layers.  language_model_only: leave out its vision tower.  mmproj: for a
    .gguf file, the file with its towers.  overrides: of the model's settings. Never raises."""
    if model is not None:
        return examine_model(
            model,
            model_impl,
            language_model_only=language_model_only,
            mmproj=mmproj,
            overrides=overrides,
        )
    checks: dict[str, Callable[[], str]] = {
        "python": lambda: f"{platform.python_version()} on {platform.machine()}",
        "processor": environment_checks.processor,
        "gpu": environment_checks.gpu,
        "torch": _torch,
        "triton": environment_checks.triton,
        "worker libraries": lambda: environment_checks.libraries(
            environment_checks.WORKER_LIBRARIES
        ),
        "gateway libraries": lambda: environment_checks.libraries(
            environment_checks.FRONT_LIBRARIES
        ),
        "cpu kernels": _cpu_kernels,
        "threads": _threads,
        "numa nodes": _nodes,
        "load": environment_checks.load,
        "memory": lambda: f"{free_memory() / (1 << 30):.1f} GiB free",
        "huge pages": environment_checks.huge_pages,
        "open files": environment_checks.open_files,
        "port": environment_checks.port,
        "model cache": environment_checks.cache,
        "default model": _default_model,
        "models": lambda: "`penstock recommend` says which fit this machine, and how fast they are",
    }
    return [_run(name, check) for name, check in checks.items()]


def _run(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except Advice as advice:
        return Finding(name, True, str(advice), "note")
    except Exception as error:
        return Finding(name, False, str(error), "missing")


def _torch() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.__version__}, CUDA {torch.version.cuda}"
    if shutil.which("nvidia-smi") is not None:
        raise Advice(f"{torch.__version__}, which can't use the GPU; the CPU is used")
    return f"{torch.__version__}, no CUDA device"


def _cpu_kernels() -> str:
    from penstock_kernels.cpu.library import PATH, instruction_set

    try:
        return f"{instruction_set()}, from {PATH.name}"
    except ImportError as error:
        found = next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), None)
        compiler = f"{found} is there" if found else "no C++ compiler was found"
        raise ImportError(f"{error} ({compiler}); the slow reference backend is used") from error


def _threads() -> str:
    from penstock_worker.machine.cpu import usable_threads

    return f"{usable_threads()} usable"


def _nodes() -> str:
    if len(usable_nodes()) < 2:
        return describe_nodes()
    raise Advice(f"{describe_nodes()}; --numa auto gives each a rank, and that its own memory")


def _placement(prepared: PreparedModel) -> Iterator[Finding]:
    """What `--numa auto` means for the model, where there are several nodes."""
    pooled = prepared.pooling is not None
    found = one_rank_per_node(
        usable_nodes(),
        usable_cores(),
        1,
        lambda ranks: one_rank_only(prepared, ranks, pooled=pooled),
    )
    if found is None:
        return
    said = f"ranks on {written(found.ranks)}, {found.threads} threads each"
    why = f" (not one for each node: {found.why})" if found.why else ""
    yield Finding("--numa auto", True, said + why, "note" if found.why else "ok")


def _default_model() -> str:
    from penstock.config.settings import ModelSettings
    from penstock.prepare import prepare

    return str(prepare(ModelSettings().model))


def show(findings: list[Finding]) -> str:
    """A line for each, for a terminal, and one that sums up."""
    width = max(len(finding.name) for finding in findings)
    marks = {"ok": "ok  ", "note": "note", "missing": "MISS"}
    lines = [f"{marks[one.level]} {one.name:<{width}}  {one.text}" for one in findings]
    missing = [one.name for one in findings if not one.ok]
    last = (
        f"To fix, as the lines with MISS say: {', '.join(missing)}."
        if missing
        else "Nothing to fix: Penstock can run on this machine."
    )
    return "\n".join([*lines, "", last])


if __name__ == "__main__":
    sys.stdout.write(show(examine()) + "\n")
