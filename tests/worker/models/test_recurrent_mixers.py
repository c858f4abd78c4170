"""Each kind of recurrent layer against the formulas, token by token in float64; and the same bits
however a sequence is divided."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.layer_spec import LayerSpec
from penstock.model.recurrent_spec import (
    GatedDeltaSpec,
    Mamba1Spec,
    Mamba2Spec,
    RecurrentSpec,
    ShortConvSpec,
    state_numbers,
)
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.recurrent.interface import Mixer
from penstock_worker.layers.recurrent.mixers import load_mixer
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.parallel.shard import shard_of
from tests.met import met
from tests.worker.checkpoints import TINY
from tests.worker.random_weights import CPU, RandomWeights

SPECS: dict[str, RecurrentSpec] = {
    "short convolution": ShortConvSpec(width=44, kernel=3, bias=True),
    "of one token": ShortConvSpec(width=9, kernel=1),
    "gated delta": GatedDeltaSpec(key_heads=2, value_heads=6, key_dim=5, value_dim=7, kernel=4),
    "gated delta, wide": GatedDeltaSpec(
        key_heads=3, value_heads=3, key_dim=32, value_dim=40, kernel=2
    ),
    "gated delta, overshooting": GatedDeltaSpec(
        key_heads=2, value_heads=2, key_dim=5, value_dim=7, kernel=4, strongest=2.0, norm_eps=0.1
    ),
    "channels that decay": GatedDeltaSpec(
        key_heads=2, value_heads=4, key_dim=5, value_dim=7, kernel=4, rank=9
    ),
    "mamba 2": Mamba2Spec(
        heads=6, head_dim=5, groups=2, state=7, kernel=4, bias=True, norm_groups=3
    ),
    "mamba 2, limited": Mamba2Spec(
        heads=4,
        head_dim=32,
        groups=1,
        state=24,
        kernel=4,
        conv_bias=False,
        time_step_min=0.3,
        time_step_max=0.9,
    ),
    "mamba 1": Mamba1Spec(inner=37, state=6, kernel=4, rank=5, norms="weighed", norm_eps=0.1),
    "mamba 1, plain norms": Mamba1Spec(
        inner=20, state=9, kernel=3, rank=3, conv_bias=False, bias=True, norms="plain"
    ),
    "mamba 1, no norms": Mamba1Spec(inner=32, state=16, kernel=2, rank=4),
}
TOKENS, HIDDEN = 23, TINY.hidden_size
AT = "layers.0.recurrent"


@cache
def mixer_of(name: str, device: torch.device = CPU) -> Mixer:
    spec = SPECS[name]
    config = msgspec.structs.replace(TINY, layers=(LayerSpec(recurrent=spec),))
    parts = Parts(config, RandomWeights(device=device), REFERENCE, shard_of(config, ALONE.place))
    return load_mixer(parts, 0, spec)


@cache
def features_of(name: str) -> torch.Tensor:
    return mixer_of(name).project(hidden())


def hidden() -> torch.Tensor:
    return torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(2))


def weight(name: str, *shape: int) -> np.ndarray:
    return RandomWeights().take(f"{AT}.{name}", shape).numpy().astype(np.float64)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def convolved(x: np.ndarray, spec: RecurrentSpec, *, bias: bool) -> np.ndarray:
    kernel = weight("conv.weight", spec.channels, 1, spec.kernel)[:, 0]
    padded = np.concatenate((np.zeros((spec.kernel - 1, spec.channels)), x))
    found = np.stack([(padded[t : t + spec.kernel] * kernel.T).sum(0) for t in range(len(x))])
    return found + weight("conv.bias", spec.channels) if bias else found


def short_conv(x: np.ndarray, spec: ShortConvSpec) -> np.ndarray:
    def product(name: str, values: np.ndarray, outputs: int) -> np.ndarray:
        found = values @ weight(f"{name}.weight", outputs, values.shape[1]).T
        return found + weight(f"{name}.bias", outputs) if spec.bias else found

    into, out_of, inputs = np.split(product("in_proj", x, 3 * spec.width), 3, -1)
    mixed = out_of * convolved(into * inputs, spec, bias=spec.bias)
    return product("out_proj", mixed, HIDDEN)


def gated_delta(x: np.ndarray, spec: GatedDeltaSpec) -> np.ndarray:
    heads, several = spec.value_heads, spec.value_heads // spec.key_heads

    def product(name: str, outputs: int) -> np.ndarray:
        of = x
        if spec.rank and name in ("in_proj_z", "in_proj_a"):
            of = x @ weight(f"{name}_down.weight", spec.rank, HIDDEN).T
        return of @ weight(f"{name}.weight", outputs, of.shape[1]).T

    inputs = silu(convolved(product("in_proj_qkv", spec.channels), spec, bias=False))
    gate = product("in_proj_z", spec.values).reshape(-1, heads, spec.value_dim)
    strength = spec.strongest / (1 + np.exp(-product("in_proj_b", heads)))
    time = np.log1p(np.exp(product("in_proj_a", spec.times) + weight("dt_bias", spec.times)))
    rate = -np.exp(weight("A_log", heads))
    decay = np.exp(rate[:, None] * time.reshape(len(x), heads, -1))
    keys = (-1, spec.key_heads, spec.key_dim)
    query = inputs[:, : spec.keys].reshape(keys)
    key = inputs[:, spec.keys : 2 * spec.keys].reshape(keys)
    value = inputs[:, 2 * spec.keys :].reshape(-1, heads, spec.value_dim)
    query, key = (each / np.sqrt((each**2).sum(-1, keepdims=True) + 1e-6) for each in (query, key))
    found = np.empty_like(value)
    for head in range(heads):
        state = np.zeros((spec.value_dim, spec.key_dim))
        for t in range(len(x)):
            k, q = key[t, head // several], query[t, head // several]
            state = decay[t, head] * state
            state = state + strength[t, head] * np.outer(value[t, head] - state @ k, k)
            found[t, head] = state @ q / np.sqrt(spec.key_dim)
    eps = TINY.norm.eps if spec.norm_eps is None else spec.norm_eps
    scale = np.sqrt((found**2).mean(-1, keepdims=True) + eps)
    weighed = 1 / (1 + np.exp(-gate)) if spec.rank else silu(gate)
    normed = found / scale * weight("norm.weight", spec.value_dim) * weighed
    return normed.reshape(len(x), -1) @ weight("out_proj.weight", HIDDEN, spec.values).T


def mamba2(x: np.ndarray, spec: Mamba2Spec) -> np.ndarray:
    inner, maps = spec.inner, spec.groups * spec.state
    features = x @ weight("in_proj.weight", inner + spec.channels + spec.heads, HIDDEN).T
    if spec.bias:
        features = features + weight("in_proj.bias", features.shape[1])
    gate, features, time = np.split(features, (inner, inner + spec.channels), -1)
    inputs = silu(convolved(features, spec, bias=spec.conv_bias))
    values = inputs[:, :inner].reshape(-1, spec.heads, spec.head_dim)
    into = inputs[:, inner : inner + maps].reshape(-1, spec.groups, spec.state)
    out_of = inputs[:, inner + maps :].reshape(-1, spec.groups, spec.state)
    time = np.log1p(np.exp(time + weight("dt_bias", spec.heads)))
    time = time.clip(spec.time_step_min, spec.time_step_max)
    rate, skip = -np.exp(weight("A_log", spec.heads)), weight("D", spec.heads)
    found = np.empty_like(values)
    for head in range(spec.heads):
        group = head * spec.groups // spec.heads
        state = np.zeros((spec.head_dim, spec.state))
        for t in range(len(x)):
            state = np.exp(time[t, head] * rate[head]) * state
            state = state + time[t, head] * np.outer(values[t, head], into[t, group])
            found[t, head] = state @ out_of[t, group] + skip[head] * values[t, head]
    gated = (found.reshape(len(x), -1) * silu(gate)).reshape(len(x), spec.norm_groups, -1)
    normed = gated / np.sqrt((gated**2).mean(-1, keepdims=True) + TINY.norm.eps)
    normed = normed.reshape(len(x), -1) * weight("norm.weight", inner)
    result = normed @ weight("out_proj.weight", HIDDEN, inner).T
    return result + weight("out_proj.bias", HIDDEN) if spec.bias else result


def mamba1(x: np.ndarray, spec: Mamba1Spec) -> np.ndarray:
    inner = spec.inner
    features = x @ weight("in_proj.weight", 2 * inner, HIDDEN).T
    if spec.bias:
        features = features + weight("in_proj.bias", 2 * inner)
    inputs, gate = np.split(features, 2, -1)
    inputs = silu(convolved(inputs, spec, bias=spec.conv_bias))
    small = inputs @ weight("x_proj.weight", spec.rank + 2 * spec.state, inner).T
    parts = np.split(small, (spec.rank, spec.rank + spec.state), -1)
    for at, name in enumerate(("dt_norm", "b_norm", "c_norm")):
        if spec.norms == "none":
            continue
        each = parts[at] / np.sqrt((parts[at] ** 2).mean(-1, keepdims=True) + spec.norm_eps)
        if spec.norms == "weighed":
            each = each * weight(f"{name}.weight", each.shape[1])
        parts[at] = each
    times, into, out_of = parts
    times = times @ weight("dt_proj.weight", inner, spec.rank).T + weight("dt_bias", inner)
    times = np.log1p(np.exp(times))
    rate = -np.exp(weight("A_log", inner * spec.state)).reshape(inner, spec.state)
    skip, found, state = weight("D", inner), np.empty_like(inputs), np.zeros((inner, spec.state))
    for t in range(len(x)):
        state = np.exp(times[t][:, None] * rate) * state
        state = state + np.outer(times[t] * inputs[t], into[t])
        found[t] = state @ out_of[t] + skip * inputs[t]
    result = (found * silu(gate)) @ weight("out_proj.weight", HIDDEN, inner).T
    return result + weight("out_proj.bias", HIDDEN) if spec.bias else result


@pytest.mark.parametrize("name", SPECS)
def test_equals_the_formulas(name: str) -> None:
    spec, mixer = SPECS[name], mixer_of(name)
    x = hidden().numpy().astype(np.float64)
    if isinstance(spec, ShortConvSpec):
        true = short_conv(x, spec)
    elif isinstance(spec, GatedDeltaSpec):
        true = gated_delta(x, spec)
    elif isinstance(spec, Mamba1Spec):
        true = mamba1(x, spec)
    else:
        true = mamba2(x, spec)
    features = features_of(name)
    mixed = mixer.scan(features, torch.zeros(state_numbers(spec)))
    ours = mixer.finish(mixed, features).numpy()
    assert np.abs(ours - true).max() < 1e-5 * np.abs(true).max()
    assert true.std() > 0.01


@settings(max_examples=20, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", SPECS)
def test_the_same_bits_in_any_pieces(name: str, data: st.DataObject) -> None:
    """Results and state, in float32 and from features in bfloat16, wherever these lie."""
    spec, mixer = SPECS[name], mixer_of(name)
    cuts = sorted(data.draw(st.sets(st.integers(1, TOKENS - 1))))
    dtype = data.draw(st.sampled_from((torch.float32, torch.bfloat16)))
    met("several pieces", cuts)
    features = features_of(name).to(dtype)
    whole, pieces = torch.zeros(state_numbers(spec)), torch.zeros(state_numbers(spec) + 3)[3:]
    mixed = mixer.scan(features, whole)
    parts = [
        mixer.scan(features[low:high].clone(), pieces)
        for low, high in zip([0, *cuts], [*cuts, TOKENS], strict=True)
    ]
    assert torch.equal(mixed, torch.cat(parts))
    assert torch.equal(whole, pieces)
    assert mixed.dtype == torch.float32
    if spec.kernel > 1:
        assert bool(whole.any())


@pytest.mark.parametrize("name", SPECS)
def test_rows_are_projected_and_finished_each_by_itself(name: str) -> None:
    mixer, features = mixer_of(name), features_of(name)
    mixed = mixer.scan(features, torch.zeros(state_numbers(SPECS[name])))
    rows = slice(4, 9)
    assert torch.equal(mixer.project(hidden()[rows]), features[rows])
    finished = mixer.finish(mixed, features)
    assert torch.equal(mixer.finish(mixed[rows], features[rows]), finished[rows])
