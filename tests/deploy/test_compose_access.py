"""Compose's keys and limits, and what reaches those who download: without a container engine."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from penstock.cli.commands import BY_NAME
from penstock.config.flags import resolve
from penstock.config.settings import ServeConfig
from penstock.errors import StartupError
from penstock.net.exposure import check_limits
from penstock.request.api_keys import ApiKey
from tests.deploy.compose_tree import ROOT, TREES, environment_of


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_prometheus_brings_the_key_that_gateways_ask_for(tree: dict[str, Any]) -> None:
    services = tree["services"]
    (made,) = services["metrics-key"]["volumes"]
    volume, folder = made.split(":")
    file = services["metrics-key"]["command"][-1].removeprefix(folder)
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = (job for job in jobs["scrape_configs"] if "authorization" in job)
    assert job["job_name"] == "gateway"
    mounted = _mounted(services["prometheus"], volume)
    assert f"{mounted}{file}" == job["authorization"]["credentials_file"]
    # The folder is its group's: nobody else's.
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    assert f"install -d -o 10001 -g 10001 -m 0750 {folder}\n" in dockerfile
    assert services["prometheus"]["group_add"] == ["10001"]
    for name in {"gateway", "grpc", "batches"} & services.keys():
        assert (
            f"--metrics-key-file={_mounted(services[name], volume)}{file}"
            in (services[name]["command"])
        )
    for name in {"gateway", "grpc", "batches", "prometheus"} & services.keys():
        after = services[name]["depends_on"]["metrics-key"]
        assert after == {"condition": "service_completed_successfully"}


def _mounted(service: dict[str, Any], volume: str) -> str:
    (target,) = (v.split(":")[1] for v in service["volumes"] if v.startswith(f"{volume}:"))
    return str(target)


GATEWAYS = {"base": 2, "deploy/compose.keys.yml": 1, "deploy/compose.redis.yml": 2}


@pytest.mark.parametrize(("tree", "number"), GATEWAYS.items())
def test_gateways_are_as_many_as_they_are_told(tree: str, number: int) -> None:
    gateway = TREES[tree]["services"]["gateway"]
    assert gateway["scale"] == number
    assert _config(gateway["command"]).gateways == (1 if tree == "base" else number)


def test_several_gateways_refuse_to_count_each_for_itself() -> None:
    limited = ApiKey(name="a", sha256="ab" * 32, requests_per_minute=1)
    alone, together = (
        TREES[f"deploy/compose.{name}.yml"]["services"]["gateway"]["command"]
        for name in ("keys", "redis")
    )
    for command in (alone, together):
        config = _config(command)
        check_limits(config.gateway, config.doors, [limited])
    config = _config([word.replace("--gateways=1", "--gateways=2") for word in alone])
    with pytest.raises(StartupError, match="--rate-limit-storage"):
        check_limits(config.gateway, config.doors, [limited])


def _config(command: list[str]) -> ServeConfig:
    words = [word for word in command[1:] if not word.startswith("--config=")]
    return resolve(BY_NAME["gateway"].parser().parse_args(words))


def test_limits_are_counted_where_only_gateways_reach() -> None:
    services = TREES["deploy/compose.redis.yml"]["services"]
    command = services["gateway"]["command"]
    (url,) = (word.partition("=")[2] for word in command if word.startswith("--rate-limit-storage"))
    assert urlsplit(url).hostname == "redis"
    on = {name for name, each in services.items() if "limits" in each.get("networks", [])}
    assert on == {"gateway", "redis"}
    assert services["redis"]["networks"] == ["limits"]
    under = TREES["deploy/compose.keys.yml"]["services"]["gateway"]
    assert set(under["networks"]) < set(services["gateway"]["networks"])
    assert set(under["command"]) - set(command) == {"--gateways=1"}


OUTSIDE = {"HF_ENDPOINT", "HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_what_a_download_needs_is_handed_on_where_it_is_set(tree: dict[str, Any]) -> None:
    """Without a value: an empty HF_ENDPOINT would be no address."""
    for name in {"prepare", "prepare-second"} & tree["services"].keys():
        environment = environment_of(tree["services"][name])
        assert environment.keys() >= OUTSIDE
        assert all(environment[each] is None for each in OUTSIDE)
    proxies = {name for name in OUTSIDE if name.endswith("_PROXY")}
    for service in tree["services"].values():
        assert (
            "build" not in service
            or "args" not in service["build"]
            or (proxies <= service["build"]["args"].keys())
        )
    said = (ROOT / "deploy/compose.env").read_text(encoding="utf-8")
    assert set(re.findall(r"(?m)^# ([A-Z_]+)=", said)) == OUTSIDE


def test_images_of_others_are_pinned() -> None:
    for name in ("prometheus", "grafana", "redis"):
        image = TREES["deploy/compose.redis.yml"]["services"][name]["image"]
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+[-a-z]*@sha256:[0-9a-f]{64}", image)
