"""The chart's cells: each is what a release of its own would be, and a balancer leads to them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.local import CELLS_CONFIG
from deploy.local_envoy import ENVOY_CELLS_CONFIG, endpoints
from tests.deploy.helm.chart import CHART, NAMESPACE, RELEASE, by_helm, rendered
from tests.deploy.helm.objects import (
    Object,
    component,
    containers,
    flag,
    named,
    of_kind,
    pod_of,
    ports,
    selected,
)
from tests.deploy.helm.template import TemplateError
from tests.deploy.programs import needed

GIVEN: dict[str, dict[str, Any]] = {
    "default": {},
    "engines with ranks": {"engines": 2, "ranks": {"tensor": 2, "pipeline": 1}},
    "all parts": {
        "apiKeys": {"existingSecret": "api-keys"},
        "grpc": {"enabled": True},
        "storage": {
            "enabled": True,
            "databaseUrl": "postgresql+psycopg://p@db/penstock",
            "s3": {"url": "s3://files/penstock"},
        },
        "serviceMonitor": {"enabled": True},
        "queueScaling": {"enabled": True, "serverAddress": "http://prometheus:9090"},
        "gateway": {"autoscaling": {"enabled": True}},
        "model": {"storage": {"mode": "shared"}},
        "moreModels": [{"key": "second", "model": {"name": "Qwen/Qwen3-8B", "served": "qwen"}}],
    },
    "Envoy": {"cellBalancer": {"program": "envoy", "load": 150}},
    "nothing that can be left out": {
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
}
CELLS = 3
LONG = "a-name-that-is-as-long-as-a-name-may-be-x"


@pytest.fixture(params=GIVEN, ids=str)
def given(request: pytest.FixtureRequest) -> dict[str, Any]:
    return GIVEN[request.param]


def of_balancer(one: Object) -> bool:
    labels: dict[str, str] = one["metadata"]["labels"]
    return labels["app.kubernetes.io/component"] == "cells"


def without_entrance(text: Any) -> Any:
    """Nothing of the names by which clients reach the balancer, which no release of its own has."""
    if isinstance(text, str):
        own = f"{RELEASE}-cells"
        names = [own, f"{own}.{NAMESPACE}", f"{own}.{NAMESPACE}.svc"]
        for name in [*names, f"{own}.{NAMESPACE}.svc.cluster.local"]:
            text = text.replace(f",{name},", ",").removesuffix(f",{name}")
        return text
    if isinstance(text, dict):
        return {key: without_entrance(value) for key, value in text.items()}
    return [without_entrance(each) for each in text] if isinstance(text, list) else text


def test_each_cell_is_what_a_release_of_its_own_would_be(
    given: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    found = named(rendered({**given, "cells": CELLS}))
    balancing = {key for key, one in found.items() if of_balancer(one)}
    kinds = {kind for kind, _ in balancing}
    assert kinds >= {"ConfigMap", "Deployment", "Service"}
    if "nothing" not in request.node.callspec.id:
        assert kinds >= {"NetworkPolicy", "PodDisruptionBudget"}
    expected = named(rendered(given))
    for number in range(2, CELLS + 1):
        expected |= named(rendered(given, f"{RELEASE}-cell-{number}"))
    left = {key: without_entrance(one) for key, one in found.items() if key not in balancing}
    assert left.keys() == expected.keys()
    assert left == expected


@pytest.mark.parametrize("program", ["haproxy", "envoy"])
def test_every_object_fits_kubernetes_own_schema(program: str) -> None:
    for document in rendered({"cells": 8, "cellBalancer": {"program": program}}):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_helm_makes_the_same_of_it(given: dict[str, Any], tmp_path: Path) -> None:
    values = {**given, "cells": CELLS}
    theirs = by_helm(values, tmp_path)
    if theirs is None:
        pytest.skip("there is no helm here")
    assert named(theirs) == named(rendered(values))


def balancer(documents: list[Object]) -> Object:
    return next(one for one in of_kind(documents, "Deployment") if component(one) == "cells")


def addresses_of(documents: list[Object]) -> list[str]:
    """HOST:PORT of each cell, as the balancer is told."""
    (container,) = containers(balancer(documents))
    if container["name"] == "envoy":
        found = endpoints(cells_of(envoy_config(documents)))
        places = [each["address"]["socket_address"] for each in found]
        assert [each["hostname"] for each in found] == [
            f"cell{n}" for n in range(1, len(places) + 1)
        ]
        return [f"{each['address']}:{each['port_value']}" for each in places]
    told = [each["value"] for each in container["env"] if "_CELL_" in each["name"]]
    return [each for each in told if ":" in each]


def config_of(documents: list[Object]) -> dict[str, str]:
    """The balancer's files."""
    (found,) = filter(of_balancer, of_kind(documents, "ConfigMap"))
    return dict(found["data"])


def envoy_config(documents: list[Object]) -> dict[str, Any]:
    return dict(yaml.safe_load(config_of(documents)["cells.yaml"]))


def cells_of(config: dict[str, Any]) -> dict[str, Any]:
    """Envoy's cluster of cells."""
    clusters = config["static_resources"]["clusters"]
    return dict(next(each for each in clusters if each["name"] == "cells"))


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("name", ["", LONG])
@pytest.mark.parametrize("program", ["haproxy", "envoy"])
def test_the_balancer_leads_to_every_cells_gateways(program: str, count: int, name: str) -> None:
    port = 8080
    service = {"service": {"port": port}}
    values = {"cells": count, "gateway": service, "fullnameOverride": name}
    documents = rendered({**values, "cellBalancer": {"program": program}})
    services = named(documents)
    addresses = addresses_of(documents)
    assert len(set(addresses)) == count
    instances = set()
    for address in addresses:
        host, _, said = address.partition(":")
        spec = services["Service", host]["spec"]
        assert spec["ports"][0]["port"] == int(said) == port
        (gateway,) = selected(documents, spec["selector"])
        assert component(gateway) == "gateway"
        instances.add(spec["selector"]["app.kubernetes.io/instance"])
    assert len(instances) == count


def test_cells_share_no_engine(given: dict[str, Any]) -> None:
    documents = rendered({**given, "cells": CELLS})
    gateways = [one for one in of_kind(documents, "Deployment") if component(one) == "gateway"]
    dialled = [flag(containers(one)[-1], "--engine-endpoint") for one in gateways]
    assert len(set(dialled)) == len(dialled) == CELLS
    for policy in of_kind(documents, "NetworkPolicy"):
        own = policy["spec"]["podSelector"]["matchLabels"]
        for rule in policy["spec"]["ingress"]:
            for peer in rule["from"]:
                labels = peer.get("podSelector", {}).get("matchLabels", {})
                instance = labels.get("app.kubernetes.io/instance")
                balances = labels.get("app.kubernetes.io/component") == "cells"
                assert balances or instance in (None, own["app.kubernetes.io/instance"])


def test_clients_come_to_the_balancer_and_gateways_know_its_name() -> None:
    values = {
        "cells": 2,
        "ingress": {"enabled": True, "allowOpen": True, "host": "llm.example"},
        "httpRoute": {"enabled": True, "allowOpen": True, "parentRefs": [{"name": "public"}]},
    }
    documents = rendered(values)
    entrance = f"{RELEASE}-cells"
    service = named(documents)["Service", entrance]
    assert selected(documents, service["spec"]["selector"]) == [balancer(documents)]
    assert service["spec"]["ports"][0]["targetPort"] in ports(balancer(documents))
    (ingress,) = of_kind(documents, "Ingress")
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["name"] == entrance
    (route,) = of_kind(documents, "HTTPRoute")
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": entrance, "port": 80}]
    for one in of_kind(documents, "Deployment"):
        if component(one) == "gateway":
            hosts = (flag(containers(one)[-1], "--allowed-hosts") or "").split(",")
            assert {entrance, f"{entrance}.{NAMESPACE}.svc", "llm.example"} <= set(hosts)


def test_the_balancers_configuration_is_the_one_that_is_tested() -> None:
    for tested in (CELLS_CONFIG, ENVOY_CELLS_CONFIG, ENVOY_CELLS_CONFIG.parent / "drain.sh"):
        assert (CHART / "files" / tested.name).read_text() == tested.read_text()
    found = config_of(rendered({"cells": 2}))
    assert {name: text.strip() for name, text in found.items()} == {
        "cells.cfg": CELLS_CONFIG.read_text().strip()
    }
    # Of Envoy's, all but the cells' addresses and load.
    documents = rendered({"cells": 2, "cellBalancer": {"program": "envoy", "load": 150}})
    made, tested = envoy_config(documents), yaml.safe_load(ENVOY_CELLS_CONFIG.read_text())
    hashing = cells_of(made)["common_lb_config"]["consistent_hashing_lb_config"]
    assert hashing.pop("hash_balance_factor") == 150
    del cells_of(tested)["common_lb_config"]["consistent_hashing_lb_config"]["hash_balance_factor"]
    for config in (made, tested):
        cells_of(config).pop("load_assignment")["endpoints"]
    for config in (made, tested):
        clusters = config["static_resources"]["clusters"]
        config["static_resources"]["clusters"] = [
            {name: part for name, part in each.items() if name != "load_assignment"}
            for each in clusters
        ]
    assert made == tested


def test_envoy_accepts_what_the_chart_makes(tmp_path: Path) -> None:
    file = tmp_path / "cells.yaml"
    documents = rendered({"cells": 12, "cellBalancer": {"program": "envoy"}})
    file.write_text(config_of(documents)["cells.yaml"])
    said = subprocess.run(
        [needed("envoy"), "--mode", "validate", "--config-path", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 0, said.stderr
    assert len(addresses_of(documents)) == 12


@pytest.mark.parametrize("program", ["haproxy", "envoy"])
def test_it_leaves_after_it_is_no_longer_asked_and_when_nothing_is_open(program: str) -> None:
    gateway = {"preStopSeconds": 7, "shutdownTimeout": 30}
    values = {"cells": 2, "cellBalancer": {"program": program}, "gateway": gateway}
    made = balancer(rendered(values))
    (container,) = containers(made)
    before = container["lifecycle"]["preStop"]
    if program == "haproxy":  # SIGUSR1, which its image has as STOPSIGNAL, lets what is open end.
        assert before == {"sleep": {"seconds": 7}}
    else:
        assert before["exec"]["command"][-1] == "sleep 7; exec bash /etc/balancer/drain.sh"
        assert {"name": "config", "mountPath": "/etc/balancer", "readOnly": True} in (
            container["volumeMounts"]
        )
    assert pod_of(made)["spec"]["terminationGracePeriodSeconds"] > 7 + 30


FROM_ELSEWHERE = [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]


def test_only_who_may_come_to_gateways_comes_to_the_balancer_and_it_to_them() -> None:
    """Policies add up: what one lets in comes in."""
    documents = rendered({"cells": CELLS, "networkPolicy": {"gatewayFrom": FROM_ELSEWHERE}})
    allowed: dict[str, list[Any]] = {}
    for policy in of_kind(documents, "NetworkPolicy"):
        for workload in selected(documents, policy["spec"]["podSelector"]["matchLabels"]):
            for rule in policy["spec"]["ingress"]:
                if {"protocol": "TCP", "port": "http"} in rule.get("ports", []):
                    allowed.setdefault(workload["metadata"]["name"], []).extend(rule["from"])
    front = balancer(documents)
    labels = pod_of(front)["metadata"]["labels"]
    assert allowed.pop(front["metadata"]["name"]) == FROM_ELSEWHERE
    assert len(allowed) == CELLS
    for peers in allowed.values():
        own = [each["podSelector"]["matchLabels"] for each in peers if each not in FROM_ELSEWHERE]
        assert len(own) == 1
        assert own[0].items() <= labels.items()
        assert FROM_ELSEWHERE[0] in peers


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"inferencePool": {"enabled": True, "endpointPicker": {"name": "p"}}}, "inferencePool"),
        ({"storage": {"enabled": True, "databaseUrl": "postgresql+psycopg://p@db/x"}}, "s3.url"),
        ({}, "program envoy"),
    ],
)
def test_what_cells_can_not_have_is_said(values: dict[str, Any], words: str) -> None:
    rendered(values)
    with pytest.raises(TemplateError, match=words):
        rendered({**values, "cells": 2 if values else 9})
