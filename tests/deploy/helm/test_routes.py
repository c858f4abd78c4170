"""What the chart has for a cluster's routing and scaling: Gateway API, inference pools, KEDA."""

from __future__ import annotations

import re

import jsonschema
import pytest

from tests.deploy.families import ALL as FAMILIES
from tests.deploy.helm.chart import NAMESPACE, rendered
from tests.deploy.helm.objects import Object, containers, flag, named, of_kind, ports, selected
from tests.deploy.helm.template import TemplateError
from tests.deploy.helm.values import VALUES

PARENTS = [{"name": "public"}]


def gateway(documents: list[Object]) -> Object:
    return named(documents)["Deployment", "prod-gateway"]


def test_a_route_leads_to_the_gateways() -> None:
    documents = rendered(VALUES["Gateway API"])
    (route,) = of_kind(documents, "HTTPRoute")
    (rule,) = route["spec"]["rules"]
    (target,) = rule["backendRefs"]
    service = named(documents)["Service", target["name"]]
    assert target["port"] in [port["port"] for port in service["spec"]["ports"]]
    assert selected(documents, service["spec"]["selector"]) == [gateway(documents)]
    assert rule["timeouts"] == {"request": "0s"}, "a stream would be cut"
    assert of_kind(documents, "InferencePool") == []
    assert of_kind(rendered(), "HTTPRoute", "InferencePool", "ScaledObject") == []


def test_a_pool_is_the_gateways_and_the_route_leads_to_it() -> None:
    documents = rendered(VALUES["an inference pool"])
    (pool,), (route,) = of_kind(documents, "InferencePool"), of_kind(documents, "HTTPRoute")
    assert selected(documents, pool["spec"]["selector"]["matchLabels"]) == [gateway(documents)]
    assert pool["spec"]["targetPorts"] == [{"number": ports(gateway(documents))["http"]}]
    (target,) = route["spec"]["rules"][0]["backendRefs"]
    group = pool["apiVersion"].partition("/")[0]
    assert target == {"group": group, "kind": "InferencePool", "name": pool["metadata"]["name"]}
    assert pool["spec"]["endpointPickerRef"] == {
        "name": "picker",
        "port": {"number": 9002},
        "failureMode": "FailClose",
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"httpRoute": {"enabled": True, "parentRefs": PARENTS}}, "lets everybody ask"),
        ({"httpRoute": {"enabled": True, "allowOpen": True}}, "httpRoute.parentRefs"),
        ({"inferencePool": {"enabled": True}}, "inferencePool.endpointPicker.name"),
        ({"queueScaling": {"enabled": True}}, "queueScaling.serverAddress"),
    ],
)
def test_what_is_missing_is_said(values: Object, words: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(words)):
        rendered(values)


@pytest.mark.parametrize(
    "values",
    [
        {"httpRoute": {"parentRefs": [{"namespace": "gateways"}]}},
        {"httpRoute": {"hostnames": ["llm.example.org:443"]}},
        {"inferencePool": {"endpointPicker": {"failureMode": "Open"}}},
        {"queueScaling": {"minEngines": 0}},
        {"queueScaling": {"authModes": "password"}},
    ],
)
def test_what_is_wrong_is_refused(values: Object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        rendered(values)


def test_names_without_keys_are_those_of_route_and_ingress() -> None:
    """A server without keys answers to the names that it is told, and no others."""
    route = {"enabled": True, "parentRefs": PARENTS, "hostnames": ["a.example", "*.b.example"]}
    documents = rendered(
        {
            "httpRoute": {**route, "allowOpen": True},
            "ingress": {"enabled": True, "host": "c.example", "allowOpen": True},
        }
    )
    own = containers(gateway(documents))[0]
    hosts = (flag(own, "--allowed-hosts") or "").split(",")
    assert hosts[-3:] == ["c.example", "a.example", "*.b.example"]
    service = str(gateway(documents)["metadata"]["name"])
    assert [host.partition(".")[0] for host in hosts[:-3]] == [service] * 4


def test_engines_and_their_workers_follow_one_count() -> None:
    documents = rendered(VALUES["engines by the queue"])
    objects = named(documents)
    scalers = {one["metadata"]["name"]: one for one in of_kind(documents, "ScaledObject")}
    sets = {one["metadata"]["name"]: one for one in of_kind(documents, "StatefulSet")}
    assert scalers.keys() == sets.keys()
    assert len(sets) == 5, "an engine and a worker, an engine and two ranks"
    queries: dict[bool, set[str]] = {False: set(), True: set()}
    for name, scaler in scalers.items():
        spec = scaler["spec"]
        assert spec["scaleTargetRef"] == {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": name,
        }
        assert "replicas" not in sets[name]["spec"], "an upgrade would undo what it decided"
        (trigger,) = spec["triggers"]
        queries["second" in name].add(trigger["metadata"]["query"])
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 8)
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        assert trigger["authenticationRef"] == {"name": "prometheus"}
        assert scaler["metadata"]["labels"].items() >= sets[name]["metadata"]["labels"].items()
    for second, (query,) in queries.items():
        assert set(re.findall(r"vllm:\w+", query)) <= FAMILIES
        services = set(re.findall(r'service="([^"]+)"', query))
        (service,) = services
        assert set(re.findall(r'namespace="([^"]+)"', query)) == {NAMESPACE}
        found = selected(documents, objects["Service", service]["spec"]["selector"])
        assert [one["metadata"]["name"] for one in found] == [
            "prod-engine-second" if second else "prod-engine"
        ]
        assert objects["Service", service]["metadata"]["labels"]["penstock/metrics"] == "true"


def test_a_worker_that_leaves_with_its_engine_computes_until_that_has_drained() -> None:
    documents = rendered(VALUES["engines by the queue"])
    for name, one in (
        (each["metadata"]["name"], each) for each in of_kind(documents, "StatefulSet")
    ):
        spec = one["spec"]["template"]["spec"]
        engine = named(documents)["StatefulSet", "prod-engine"]
        drains = int(str(flag(containers(engine)[-1], "--shutdown-timeout")))
        if "worker" in name:
            waits = containers(one)[-1]["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert waits >= drains == 120
            assert spec["terminationGracePeriodSeconds"] > waits
    (alone,) = (
        one for one in of_kind(rendered(), "StatefulSet") if "worker" in str(one["metadata"])
    )
    assert "lifecycle" not in containers(alone)[-1], "an upgrade would wait for nobody"
