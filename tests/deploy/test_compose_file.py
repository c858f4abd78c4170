"""The compose file and its overrides, without a container engine: they agree with Penstock."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local_envoy import endpoints
from penstock.cli.commands import BY_NAME
from penstock.config.flags import resolve
from penstock.config.settings import ServeConfig
from tests.deploy.compose_tree import BASE, OVERRIDES, ROOT, TREES, VARIABLE, environment_of

SECOND = {"prepare-second", "engine-second", "worker-second"}
OWN = {
    "prepare",
    "keys",
    "metrics-key",
    "gateway",
    "grpc",
    "batches",
    "engine",
    "worker",
    "engine-2",
    "gateway-2",
    "worker-1",
    "worker-2",
}
OWN |= SECOND
ONE_SHOT = {"prepare", "keys", "metrics-key", "prepare-second"}
_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> int:
    """Compose's `40s`, `2m`."""
    return int(text[:-1]) * _UNITS[text[-1]]


def role_of(name: str) -> str:
    """`worker-2` is a worker."""
    return re.sub(r"-(\d+|second)$", "", name)


SERVICES = [
    pytest.param(name, service, id=f"{tree}:{name}")
    for tree, loaded in TREES.items()
    for name, service in loaded["services"].items()
]


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_every_service_is_confined(name: str, service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].split(":")[0] not in ("", "0", "root")
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service["ulimits"]["nofile"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped")
    assert "container_name" not in service, "it couldn't be scaled"
    assert name in ONE_SHOT or service["healthcheck"]["test"]


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_commands_are_penstocks(name: str, service: dict[str, Any]) -> None:
    if name not in OWN:
        return
    command, *words = service["command"]
    arguments = BY_NAME[command].parser().parse_args(words)
    if "config" in vars(arguments):
        # The file that is mounted there, and not one of this machine.
        arguments.config = str(ROOT / "deploy/settings.yaml")
        config = resolve(arguments)
        grace = seconds(service["stop_grace_period"])
        assert grace > config.gateway.shutdown_timeout, "what runs is killed before its time"


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_gpu_workers_may_keep_compiled_kernels(name: str, service: dict[str, Any]) -> None:
    """The root is read-only, and nothing in /tmp may be executed."""
    if not re.search(r"worker-cuda:", service["image"]):
        return
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    (cache,) = re.findall(r"^ENV TRITON_CACHE_DIR=(\S+)$", dockerfile, re.MULTILINE)
    mounted = [Path(volume.split(":")[1]) for volume in service["volumes"]]
    assert any(folder in Path(cache).parents for folder in mounted)


def rank_of(service: dict[str, Any]) -> int:
    """A worker adds it to its port."""
    found = [word for word in service["command"] if word.startswith("--rank=")]
    return int(found[0].partition("=")[2]) if found else 0


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_health_is_asked_where_it_is_told(name: str, service: dict[str, Any]) -> None:
    if name not in OWN - ONE_SHOT:
        return
    if name in ("grpc", "batches"):
        # HTTP is at its admin port, the one after the gateway's.
        assert "--admin-port=9102" in service["command"]
        assert service["healthcheck"]["test"] == ["CMD", "healthy", "9103", "/health/live"]
        return
    *command, asked, path = service["healthcheck"]["test"]
    assert command == ["CMD", "healthy"]
    flag = {"gateway": "--port", "engine": "--engine-metrics-port"}.get(
        role_of(name), "--worker-metrics-port"
    )
    (told,) = (word for word in service["command"] if word.startswith(f"{flag}="))
    port = int(told.partition("=")[2]) + rank_of(service)
    assert port == int(asked)
    assert path == "/health/ready"


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_what_is_mounted_is_there(name: str, service: dict[str, Any], request: Any) -> None:
    tree = TREES[request.node.callspec.id.rpartition(":")[0]]
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        assert target.startswith("/")
        if source.startswith("."):
            assert (ROOT / source).exists(), f"{name} mounts {source}"
            assert volume.endswith(":ro"), "nothing writes into the repository"
        else:
            assert source in tree["volumes"]
    for network in service.get("networks", []):
        assert network in tree["networks"]
    for other in service.get("depends_on", []):
        assert other in tree["services"]
    if "build" in service:
        stages = (ROOT / service["build"]["dockerfile"]).read_text(encoding="utf-8")
        assert f" AS {service['build']['target']}\n" in stages


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_only_loopback_is_published_and_only_outside_leads_out(tree: dict[str, Any]) -> None:
    published = {}
    for name, service in tree["services"].items():
        for port in service.get("ports", []):
            published[name] = port
            assert port.startswith("127.0.0.1:")
            assert "outside" in service["networks"]
    assert published.keys() - {"grpc"} == {"haproxy", "prometheus", "grafana"}
    outside = {n for n, s in tree["services"].items() if "outside" in s.get("networks", [])}
    # Who speaks to a store that isn't ours.
    storing = {n for n, s in tree["services"].items() if "AWS_DEFAULT_REGION" in environment_of(s)}
    assert outside - {"prepare-second"} == {"prepare", *published, *storing}
    inner = [net for name, net in tree["networks"].items() if name != "outside"]
    assert all(net["internal"] is True for net in inner)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_each_role_sees_its_own_keys_only(tree: dict[str, Any]) -> None:
    for name, service in tree["services"].items():
        mounted = {volume.split(":")[0] for volume in service.get("volumes", [])}
        keys = {volume for volume in mounted if volume.endswith("-keys")}
        # A gateway by another door.
        role = "gateway" if name in ("grpc", "batches") else role_of(name)
        if role in ("gateway", "engine", "worker"):
            assert keys == {f"{role}-keys"}
        elif name != "keys":
            assert not keys


def test_batches_and_gateways_have_one_store() -> None:
    tree = TREES["deploy/compose.batches.yml"]
    services = {name: tree["services"][name] for name in ("gateway", "batches")}
    shared = ("--data-dir=", "--stored-response-hours=", "--allow-open", "--engine-endpoint=")
    said = {
        name: {word for word in service["command"] if word.startswith(shared)}
        for name, service in services.items()
    }
    assert said["gateway"] == said["batches"]
    assert len(said["gateway"]) == len(shared)
    for service in services.values():
        assert "data:/data" in service["volumes"]
        assert service["secrets"] == ["api_keys"]
    base = TREES["base"]["services"]["gateway"]["command"]
    assert set(base) < set(services["gateway"]["command"])
    # A new volume takes the owner of the folder that it is mounted on.
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"install -d -o 10001 -g 10001 -m 0700 [^\n]*/data\b", dockerfile)


def test_contents_go_to_the_store_and_nothing_else_changes() -> None:
    under, tree = TREES["deploy/compose.batches.yml"], TREES["deploy/compose.s3.yml"]
    for name in ("gateway", "batches"):
        before, after = under["services"][name], tree["services"][name]
        added = set(after["command"]) - set(before["command"])
        assert {word.partition("=")[0] for word in added} == {"--files-url", "--s3-endpoint-url"}
        assert set(before["command"]) < set(after["command"])
        # The store isn't one of ours.
        assert set(after["networks"]) - set(before["networks"]) == {"outside"}
        assert "AWS_SECRET_ACCESS_KEY" in after["environment"]
        same = before.keys() - {"command", "networks"}
        assert {key: before[key] for key in same} == {key: after[key] for key in same}


def test_plug_ins_get_into_every_image() -> None:
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    stages = re.split(r"(?m)^FROM ", dockerfile)
    finished = [stage for stage in stages if "finish.sh" in stage and "RUN" in stage]
    assert len(finished) == 5
    assert all('ARG PLUGINS=""' in stage for stage in finished)
    for service in TREES["base"]["services"].values():
        assert "build" not in service or "PLUGINS" in service["build"]["args"]


@pytest.mark.parametrize("other", ["2", "second"])
def test_the_second_engine_is_like_the_first(other: str) -> None:
    file = {"2": "two-engines", "second": "two-models"}[other]
    tree = TREES[f"deploy/compose.{file}.yml"]["services"]
    for name in ("engine", "worker"):
        one, two = dict(tree[name]), dict(tree[f"{name}-{other}"])
        one.pop("build")
        words = " ".join(one["command"]).replace("tcp://engine:", f"tcp://engine-{other}:")
        if other == "second":  # Of another model, and gateways find it by another name.
            words = words.replace("/models/current", "/models/second")
            one["depends_on"] = {
                {"prepare": "prepare-second"}.get(each, each): how
                for each, how in one["depends_on"].items()
            }
            if name == "engine":
                one["networks"] = {**one["networks"], "core": {}}
        one["command"] = words.split()
        one["networks"] = {net: given or {} for net, given in one["networks"].items()}
        assert two == one
    # On any network on which gateways would find it by that name.
    networks = tree[f"engine-{other}"]["networks"]
    reached = set(networks).intersection(tree["gateway"]["networks"])
    aliases = {name for net in reached for name in (networks[net] or {}).get("aliases", [])}
    assert ("engines" in aliases) == (other == "2")


def names_on(tree: dict[str, Any], service: str, network: str) -> set[str]:
    """Names by which a service is found on a network; empty where it isn't on it."""
    networks = tree[service].get("networks", [])
    if network not in networks:
        return set()
    given = networks[network] if isinstance(networks, dict) else None
    return {service, *(given or {}).get("aliases", [])}


def test_the_second_cell_is_like_the_first_and_they_share_no_way() -> None:
    tree = TREES["deploy/compose.two-cells.yml"]["services"]
    first = {"cell-1": "cell-2", "gateway": "gateway-2", "engine": "engine-2", "worker": "worker-2"}
    for name, other in first.items():
        one, two = dict(tree[name]), dict(tree[other])
        one.pop("build", None)
        of_one, of_two = set(one.pop("networks")), set(two.pop("networks"))
        renamed = {f"{net}-2" if net in ("front", "core") else net for net in of_one}
        assert of_two == renamed
        waits = {first.get(each, each) for each in one.pop("depends_on")}
        assert set(two.pop("depends_on")) == waits
        words = " ".join(one["command"]).replace("tcp://engine:", "tcp://engine-2:")
        one["command"] = words.split()
        assert two == one
    # What is dialled by one name in both is another's in each.
    for network, own in (("front", "gateway"), ("core", "engine")):
        found = {"front": "gateway", "core": "engines"}[network]
        for place, there in ((network, own), (f"{network}-2", f"{own}-2")):
            assert [name for name in tree if found in names_on(tree, name, place)] == [there]
    # A balancer on the metrics' network would find both cells' gateways there.
    for number in (1, 2):
        assert "metrics" not in tree[f"cell-{number}"]["networks"]
    front = tree["haproxy"]
    assert "core" not in front["networks"]
    assert {front["environment"][f"PENSTOCK_CELL_{n}"] for n in (1, 2)} == {
        "cell-1:8000",
        "cell-2:8000",
    }
    assert front["command"][-1].endswith("/cells.cfg")


def test_envoy_stands_where_haproxy_stood() -> None:
    """With a file that it can read and that names the cells by their services."""
    under, over = (TREES[f"deploy/compose.two-cells{end}.yml"] for end in ("", "-envoy"))
    differs = {name for name, one in over["services"].items() if one != under["services"][name]}
    assert differs == {"haproxy"}
    front = over["services"]["haproxy"]
    for same in ("ports", "networks", "depends_on", "read_only", "cap_drop", "mem_limit"):
        assert front[same] == under["services"]["haproxy"][same]
    (file,) = (word for word in front["command"] if word.endswith(".yaml"))
    (mounted,) = (each for each in front["volumes"] if each.startswith("./deploy/envoy:"))
    folder = Path(mounted.split(":")[1])
    assert folder in Path(file).parents
    config = yaml.safe_load((ROOT / "deploy/envoy" / Path(file).name).read_text())
    (cells,) = (one for one in config["static_resources"]["clusters"] if one["name"] == "cells")
    places = [each["address"]["socket_address"] for each in endpoints(cells)]
    told = {f"{each['address']}:{each['port_value']}" for each in places}
    assert told == {front["environment"][f"PENSTOCK_CELL_{n}"] for n in (1, 2)}


@pytest.mark.parametrize("override", ["tensor-parallel", "tensor-parallel-nvidia"])
def test_ranks_are_as_many_as_the_engine_waits_for_and_alike(override: str) -> None:
    tree = TREES[f"deploy/compose.{override}.yml"]["services"]
    base = TREES["base"]["services"]
    parser = BY_NAME["engine"].parser()
    engine = parser.parse_args(tree["engine"]["command"][1:])
    workers = {name: one for name, one in tree.items() if role_of(name) == "worker"}
    assert engine.setting_tensor_parallel_size == len(workers)
    assert sorted(rank_of(one) for one in workers.values()) == list(range(len(workers)))
    added = {"--tensor-parallel-size=2"}
    assert set(tree["engine"]["command"]) - set(base["engine"]["command"]) == added
    for name, one in workers.items():
        arguments = BY_NAME["worker"].parser().parse_args(one["command"][1:])
        assert arguments.rank_host == name, "the others reach it by its service's name"
        # Nothing but who it is tells it from the base's worker.
        assert set(base["worker"]["command"]) - set(one["command"]) <= {
            "--rank=0",
            "--worker-metrics-port=9101",
        }
        own = {key: value for key, value in one.items() if key not in ("command", "networks")}
        same = {key: base["worker"][key] for key in own if key in base["worker"]}
        differs = {key for key in same if own[key] != same[key]}
        with_gpu = {"image", "mem_limit", "build", "volumes"}
        assert differs <= (with_gpu if "nvidia" in override else set())
        assert set(one["networks"]) == set(base["worker"]["networks"])
    if "nvidia" in override:
        devices = [
            one["deploy"]["resources"]["reservations"]["devices"][0] for one in workers.values()
        ]
        assert sorted(each["device_ids"] for each in devices) == [["0"], ["1"]]


def test_every_variable_has_its_default_and_a_word() -> None:
    said = (ROOT / "deploy/compose.env").read_text(encoding="utf-8")
    defaults = dict(re.findall(r"(?m)^(\w+)=(.*)$", said))
    files = [BASE, *OVERRIDES]
    found = {m[1]: m[2] for f in files for m in VARIABLE.finditer((ROOT / f).read_text())}
    # The GPU's worker has a default of its own; files of secrets belong to their override.
    found = {name: value for name, value in found.items() if not name.endswith("_FILE")}
    assert found.keys() == defaults.keys()
    base = {m[1]: m[2] for m in VARIABLE.finditer((ROOT / BASE).read_text())}
    assert {name: value or "" for name, value in base.items()} == {n: defaults[n] for n in base}


def test_the_default_model_is_penstocks() -> None:
    assert TREES["base"]["services"]["prepare"]["command"][1] == ServeConfig().engine.model.model
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    package = re.search(r'ARG MODEL_PACKAGES="(\S+)"', dockerfile)
    assert package is not None
    assert package[1] in made
