"""The chart's cells: each is what a release of its own would be, and a balancer leads to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from deploy.local import CELLS_CONFIG
from tests.deploy.helm.chart import CHART, NAMESPACE, RELEASE, by_helm, rendered
from tests.deploy.helm.objects import (
    Object,
    component,
    containers,
    flag,
    named,
    of_kind,
    ports,
    selected,
)
from tests.deploy.helm.template import TemplateError

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
}
CELLS = 3
LONG = "a-name-that-is-as-long-as-a-name-may-be-x"


@pytest.fixture(params=GIVEN, ids=str)
def given(request: pytest.FixtureRequest) -> dict[str, Any]:
    return GIVEN[request.param]


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


def test_each_cell_is_what_a_release_of_its_own_would_be(given: dict[str, Any]) -> None:
    found = named(rendered({**given, "cells": CELLS}))
    balancing = {key for key in found if key[1] == f"{RELEASE}-cells"}
    assert {kind for kind, _ in balancing} == {"ConfigMap", "Deployment", "Service"}
    expected = named(rendered(given))
    for number in range(2, CELLS + 1):
        expected |= named(rendered(given, f"{RELEASE}-cell-{number}"))
    left = {key: without_entrance(one) for key, one in found.items() if key not in balancing}
    assert left.keys() == expected.keys()
    assert left == expected


def test_every_object_fits_kubernetes_own_schema() -> None:
    for document in rendered({"cells": 8}):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_helm_makes_the_same_of_it(given: dict[str, Any], tmp_path: Path) -> None:
    values = {**given, "cells": CELLS}
    theirs = by_helm(values, tmp_path)
    if theirs is None:
        pytest.skip("there is no helm here")
    assert named(theirs) == named(rendered(values))


def balancer(documents: list[Object]) -> Object:
    return next(one for one in of_kind(documents, "Deployment") if component(one) == "cells")


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("name", ["", LONG])
def test_the_balancer_leads_to_every_cells_gateways(count: int, name: str) -> None:
    port = 8080
    service = {"service": {"port": port}}
    documents = rendered({"cells": count, "gateway": service, "fullnameOverride": name})
    services = named(documents)
    (haproxy,) = containers(balancer(documents))
    cells = [each["value"] for each in haproxy["env"] if each["name"].startswith("PENSTOCK_CELL_")]
    addresses = [each for each in cells if ":" in each]
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
                assert instance in (None, own["app.kubernetes.io/instance"])


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
    assert (CHART / "files" / "cells.cfg").read_text() == CELLS_CONFIG.read_text()
    (config,) = (
        one
        for one in of_kind(rendered({"cells": 2}), "ConfigMap")
        if one["metadata"]["name"].endswith("-cells")
    )
    assert config["data"]["cells.cfg"].strip() == CELLS_CONFIG.read_text().strip()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"inferencePool": {"enabled": True, "endpointPicker": {"name": "p"}}}, "inferencePool"),
        ({"storage": {"enabled": True, "databaseUrl": "postgresql+psycopg://p@db/x"}}, "s3.url"),
    ],
)
def test_what_cells_can_not_have_is_said(values: dict[str, Any], words: str) -> None:
    rendered(values)
    with pytest.raises(TemplateError, match=words):
        rendered({**values, "cells": 2})
