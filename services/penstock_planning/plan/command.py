"""What `penstock plan` does: from what was asked for to the plan and its files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.config.settings import EngineConfig
from penstock.config.tree import replace_settings
from penstock.errors import InvalidRequest
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.prepare.describe import Description
from penstock.recommend.beside_card import PlacedModel
from penstock.recommend.cards import (
    ARITHMETIC_SHARE,
    BANDWIDTH_SHARE,
    Accelerator,
    parse_device,
)
from penstock_planning.plan.as_text import as_text
from penstock_planning.plan.beside import beside_plan, parse_host
from penstock_planning.plan.estimate import (
    ModelSize,
    estimated_cost,
    kv_blocks,
)
from penstock_planning.plan.objective import parse_slo
from penstock_planning.plan.plan import CapacityPlan, PlanTerms, make_plan, ramp, share, too_much
from penstock_planning.plan.search import Planner, Tell
from penstock_planning.plan.svg import draw
from penstock_planning.plan.traffic import MOST_REQUESTS, PlanTraffic, check_requests
from penstock_planning.plan.trial import CoreLayout, PlanTrial, check_layout
from penstock_planning.plan.work import WorkSpent, table_work
from penstock_planning.simulate.commands import Synthetic
from penstock_planning.simulate.cost import FittedCost, StepCost, parse, read_fitted
from penstock_planning.simulate.trace import MAX_TOKENS

BLOCKS = 2048
"""KV blocks of an engine core by default."""
LEAST_RATE, MOST_RATE = 0.001, 100_000.0
"""Requests per second of made traffic."""
LONGEST = 16
"""A made request has at most so many times the tokens of the median."""
MOST_MEDIAN = MAX_TOKENS // LONGEST
MOST_SIGMA = 4.0
MOST_SEED = 2**53
REQUESTS = 1000
"""Requests that are simulated by default."""


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, as the flags of `penstock plan` are called. times in seconds.

    trace: a file, `synthetic:…` or `agents:…`; else traffic is made: rate requests per second, of
    input_tokens and output_tokens at the median, whose logarithms have `sigma`.
    model: what the device computes.  placed: it, where its experts may be on the host."""

    slo: str
    trace: str | None = None
    rate: float | None = None
    input_tokens: int = 128
    output_tokens: int = 64
    sigma: float = 0.8
    requests: int | None = None
    reuse: float | None = None
    step_cost: str | None = None
    device: str | None = None
    model: Description | None = None
    pair_operations: float = 0.0
    cpu_experts: str = "off"
    host: str | None = None
    placed: PlacedModel | None = None
    gateway: float | None = None
    routing: str = "least-loaded"
    apart: float = 0.0
    apart_tokens: int = 512
    transfer_block: float = 0.0002
    draft_tokens: int = 0
    acceptance: float = 0.7
    cores: int | None = None
    max_cores: int = 64
    what_if: tuple[str, ...] = ()
    seed: int = 0


NOISY = (
    "The steps differ much from what the fit tells: something else may have run while they were "
    "measured. Measure them again."
)
UNSURE = 15.0
"""Percent within which a fit should tell the median step."""


class StepSource(msgspec.Struct, frozen=True, kw_only=True):
    """cost: of a step.  words: where it is from.  notes: what to know of
    it.  blocks: of KV, that go with it.  gateway:
    seconds that a request takes outside of the engine core."""

    cost: StepCost
    words: str
    estimated: bool = False
    notes: tuple[str, ...] = ()
    blocks: int = BLOCKS
    gateway: float = 0.0


def plan_of(
    asked: PlanRequest, config: EngineConfig, tell: Tell = lambda words: None
) -> CapacityPlan:
    """Raises InvalidRequest, which names the field and what is allowed."""
    layout, terms = terms_of(asked, config)
    traffic, lone = _traffic(asked, layout, terms)
    return make_plan(layout, traffic, terms, tell, lone)


def terms_of(asked: PlanRequest, config: EngineConfig) -> tuple[CoreLayout, PlanTerms]:
    """Raises InvalidRequest."""
    bounds = parse_slo(asked.slo)
    steps = _steps(asked, config)
    if config.cache.num_kv_blocks is None:
        config = replace_settings(config, {"num_kv_blocks": steps.blocks})
    layout = CoreLayout(
        config=config,
        cost=steps.cost,
        routing=asked.routing,
        apart=asked.apart,
        apart_tokens=asked.apart_tokens,
        transfer_block=asked.transfer_block,
        gateway=steps.gateway if asked.gateway is None else asked.gateway,
        draft_tokens=asked.draft_tokens,
        acceptance=asked.acceptance,
        seed=asked.seed,
        cost_source=f"--device {asked.device[:80]}" if asked.device else "--step-cost",
    )
    check_layout(layout)
    terms = PlanTerms(
        bounds=bounds,
        cores=asked.cores,
        most=asked.max_cores,
        changes=asked.what_if,
        steps=steps.words,
        notes=steps.notes,
        estimated=steps.estimated,
        all_requests=asked.requests is not None,
    )
    return layout, terms


def run_plan(
    asked: PlanRequest,
    config: EngineConfig,
    *,
    as_json: bool = False,
    output: Path | None = None,
    chart: Path | None = None,
    tell: Tell = lambda words: None,
) -> tuple[str, bool]:
    """What is to be printed, and whether some number of engine cores holds the objective. Raises
    InvalidRequest."""
    plan = plan_of(asked, config, tell)
    text = msgspec.json.format(msgspec.json.encode(plan)).decode()
    try:
        if output is not None:
            output.write_text(text + "\n", encoding="utf-8")
        if chart is not None:
            chart.write_text(draw(plan, parse_slo(asked.slo)), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{error.filename}: {error.strerror}") from None
    return text if as_json else as_text(plan), plan.cores is not None


def size_of(known: Description, model: PreparedModel) -> tuple[Description, float]:
    """What a plan needs to know of a model: its description, and the operations of attention for a
    token and one that it attends to. Raises InvalidRequest for a model that generates nothing."""
    config = model.config
    if not isinstance(config, ModelConfig) or known.pooling:
        raise InvalidRequest(f"{known.name} generates no text", param="model")
    return known, 4.0 * config.num_layers * config.num_heads * config.head_dim


def _steps(asked: PlanRequest, config: EngineConfig) -> StepSource:
    if (asked.step_cost is None) == (asked.device is None):
        raise InvalidRequest(
            "a plan needs the cost of a step, from one of: --step-cost FILE (`penstock bench steps "
            "MODEL --output FILE` measures it on this machine), or --device NAME --model MODEL (an "
            "estimate)",
            param="step_cost",
        )
    if asked.cpu_experts == "off" and asked.host is not None:
        raise InvalidRequest("--host is of no use without --cpu-experts", param="host")
    if asked.device is not None:
        return _estimated(asked, config)
    if asked.cpu_experts != "off":
        raise InvalidRequest(
            "--cpu-experts needs --device: --step-cost has the cost of a step as it was measured",
            param="cpu_experts",
        )
    given = asked.step_cost or ""
    if "=" in given:
        return StepSource(cost=parse(given), words=f"given, {given}")
    return _measured(read_fitted(given), given)


def _measured(fitted: FittedCost, file: str) -> StepSource:
    about = fitted.about
    where = ", ".join(str(about[name]) for name in ("model", "cpu") if name in about) or file
    blocks, gateway = about.get("num_kv_blocks", BLOCKS), about.get("gateway_ms", 0.0)
    if not isinstance(blocks, int | float) or not isinstance(gateway, int | float):
        raise InvalidRequest(f"{file}: num_kv_blocks and gateway_ms must be numbers")
    return StepSource(
        cost=fitted.cost,
        words=f"measured, {where}: {fitted.steps:,} steps, which the fit tells within "
        f"{fitted.error_percent:.1f} % (median)",
        notes=() if fitted.error_percent <= UNSURE else (NOISY,),
        blocks=int(blocks),
        gateway=gateway / 1000,
    )


def _estimated(asked: PlanRequest, config: EngineConfig) -> StepSource:
    name, device = parse_device(asked.device or "")
    known = asked.model
    if known is None:
        raise InvalidRequest("--device needs --model, whose steps are estimated", param="model")
    if asked.cpu_experts != "off":
        return _beside(asked, name, device, config.cache.kv_block_size)
    size = ModelSize(
        name=known.name,
        parameters=known.parameters or known.size / 2,
        weight_bytes=known.size,
        kv_bytes=known.kv_bytes_per_token,
        pair_operations=asked.pair_operations,
    )
    return StepSource(
        cost=estimated_cost(device, size),
        words=f"{known.name} on {name} ({device.bandwidth:,.0f} GB/s, {device.tflops:,.0f} TFLOPS, "
        f"of which {100 * BANDWIDTH_SHARE:.0f} % and {100 * ARITHMETIC_SHARE:.0f} % are reckoned "
        f"with; {device.overhead:g} ms a step besides)",
        estimated=True,
        blocks=kv_blocks(device, size, config.cache.kv_block_size),
    )


def _beside(asked: PlanRequest, name: str, card: Accelerator, block_size: int) -> StepSource:
    if asked.placed is None:
        raise InvalidRequest("--cpu-experts needs a model with experts", param="cpu_experts")
    if asked.host is None:
        raise InvalidRequest(
            "--cpu-experts needs --host, as in bandwidth=60,threads=16,memory=64", param="host"
        )
    host = parse_host(asked.host)
    found = beside_plan(asked.placed, card, host, asked.cpu_experts, block_size)
    model = "" if asked.model is None else asked.model.name
    return StepSource(
        cost=found.cost,
        words=f"{model} on {name}, {found.words}",
        estimated=True,
        blocks=found.blocks,
    )


def _traffic(
    asked: PlanRequest, layout: CoreLayout, terms: PlanTerms
) -> tuple[PlanTraffic, PlanTrial | None]:
    """Returns the traffic, by default as much as it takes to reach a steady state; and the trial of
    lone requests that the length follows from, whose requests are the first of both."""
    if (asked.trace is None) == (asked.rate is None):
        raise InvalidRequest("a plan needs either --trace or --rate", param="trace")
    reuse = None if asked.reuse is None else share(asked.reuse, "--reuse")
    most = REQUESTS if asked.requests is None else asked.requests
    check_requests(most)
    _check_made(asked)
    if asked.trace is not None:
        return PlanTraffic(asked.trace, most, reuse, asked.seed), None
    traffic = PlanTraffic(_made(asked, most), most, reuse, asked.seed)
    if asked.requests is not None:
        return traffic, None
    work = table_work(all_requests=False)
    try:
        lone = Planner(layout, traffic, terms.bounds, all_requests=False, work=work).alone()
    except WorkSpent:
        raise too_much(work, traffic, terms) from None
    wanted = min(MOST_REQUESTS, ramp(traffic, lone))
    if wanted > most:
        traffic = PlanTraffic(_made(asked, wanted), wanted, reuse, asked.seed)
    return traffic, lone


def _check_made(asked: PlanRequest) -> None:
    """Raises InvalidRequest, which names the flag and what it takes."""
    allowed: tuple[tuple[str, float | None, float, float], ...] = (
        ("--rate", asked.rate, LEAST_RATE, MOST_RATE),
        ("--input-tokens", asked.input_tokens, 1, MOST_MEDIAN),
        ("--output-tokens", asked.output_tokens, 1, MOST_MEDIAN),
        ("--sigma", asked.sigma, 0, MOST_SIGMA),
        ("--seed", asked.seed, 0, MOST_SEED),
    )
    for flag, value, least, most in allowed:
        if value is not None and not least <= value <= most:
            raise InvalidRequest(
                f"{flag} must be in {least:g} to {most:,.16g}, not {value:.15g}",
                param=flag.removeprefix("--").replace("-", "_"),
            )


def _made(asked: PlanRequest, requests: int) -> Synthetic:
    """Traffic as the flags have it, which were checked."""
    given = {
        "rate": asked.rate,
        "requests": requests,
        "prompt": asked.input_tokens,
        "prompt_sigma": asked.sigma,
        "max_prompt": LONGEST * asked.input_tokens,
        "output": asked.output_tokens,
        "output_sigma": asked.sigma,
        "max_output": LONGEST * asked.output_tokens,
        "seed": asked.seed,
    }
    return msgspec.convert(given, Synthetic)
