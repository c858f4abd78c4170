"""The chart: every object fits Kubernetes' schemas, and they fit each other and Penstock."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from penstock.cli.commands import BY_NAME
from penstock.config.settings import ServeConfig
from penstock.config.tree import load_file
from tests.deploy.helm.chart import by_helm, rendered
from tests.deploy.helm.custom import CUSTOM
from tests.deploy.helm.objects import (
    Object,
    component,
    containers,
    flag,
    gateway_of,
    named,
    of_kind,
    of_model,
    pod_of,
    ports,
    probes,
    selected,
    volumes,
)
from tests.deploy.helm.values import VALUES

VERSIONS = ("1.30", kubernetes_validate.latest_version())


@pytest.fixture(params=VALUES, ids=str)
def given(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VALUES[request.param]


@pytest.fixture
def documents(given: dict[str, Any]) -> list[Object]:
    return rendered(given)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_kubernetes_own_schema(documents: list[Object], version: str) -> None:
    for document in documents:
        schema = CUSTOM.get((document["apiVersion"], document["kind"]))
        if schema is not None:  # a custom resource, of which it knows nothing
            jsonschema.validate(document, schema)
        else:
            kubernetes_validate.validate(document, version, strict=True)
    named(documents)


def test_helm_makes_the_same_of_it(
    given: dict[str, Any], documents: list[Object], tmp_path: Path
) -> None:
    theirs = by_helm(given, tmp_path)
    if theirs is None:
        pytest.skip("there is no helm here")
    assert named(theirs) == named(documents)


def test_names_and_labels_are_allowed(documents: list[Object]) -> None:
    for document in documents:
        metadata = document["metadata"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"])
        pods = pod_of(document)["metadata"] if "template" in document.get("spec", {}) else {}
        for name, value in {**metadata["labels"], **pods.get("labels", {})}.items():
            assert re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9][-A-Za-z0-9_.]{0,62}", name)
            assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)
        for workload in selected(documents, {}):
            labels = pod_of(workload)["metadata"]["labels"]
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(labels) or (
                workload["kind"] == "Job"
            ), "a new version of the chart alone would restart everything"


def test_arguments_are_penstocks_own(documents: list[Object], tmp_path: Path) -> None:
    """Parsed by the command line's own parser, the configuration with them."""
    (config,) = (
        one for one in of_kind(documents, "ConfigMap") if one["metadata"]["name"].endswith("config")
    )
    file = tmp_path / "config.yaml"
    file.write_text(config["data"]["config.yaml"])
    load_file(ServeConfig, str(file))
    seen = set()
    for workload in of_kind(documents, "Deployment", "StatefulSet"):
        for container in containers(workload):
            assert "command" not in container, "the images' entry point is penstock"
            command, *rest = container["args"]
            arguments = BY_NAME[command].parser().parse_args(rest)
            assert callable(arguments.run)
            seen.add(command)
    fronts = {component(one) for one in of_kind(documents, "Deployment")}
    assert seen == {*fronts, "engine", "worker", "prepare"}


def test_services_lead_to_ports_of_pods_that_they_select(documents: list[Object]) -> None:
    services = of_kind(documents, "Service")
    for service in services:
        workload, *ranks = selected(documents, service["spec"]["selector"])
        known = ports(workload)
        assert all(ports(one) == known and _role(one).startswith("worker") for one in ranks)
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in known
            if service["spec"].get("clusterIP") == "None":
                assert port["port"] == known[port["targetPort"]], "headless: nothing translates"
    for stateful in of_kind(documents, "StatefulSet"):
        service = named(documents)["Service", stateful["spec"]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert stateful in selected(documents, service["spec"]["selector"])


def test_what_processes_dial_and_listen_on_is_there(documents: list[Object]) -> None:
    objects = named(documents)
    gateway = gateway_of(documents)
    first = of_model(documents, "")
    engine, *workers = first
    assert ports(gateway) == {"http": 8000, "metrics": 9102}
    assert ports(engine) == {"frontends": 5570, "workers": 5571, "metrics": 9100}
    assert all(ports(worker) == {"metrics": 9101} for worker in workers)
    own = containers(gateway)[-1]
    dialled = str(flag(own, "--engine-endpoint"))
    kind, _, name = dialled.split(",")[0].rpartition("=")[2].partition("://")
    host, _, port = name.partition(":")
    assert kind == "dns"
    assert selected(documents, objects["Service", host]["spec"]["selector"]) == [engine]
    assert int(port) == ports(engine)["frontends"]
    for front in of_kind(documents, "Deployment"):
        assert flag(containers(front)[-1], "--engine-endpoint") == dialled
    assert flag(own, "--port") == str(ports(gateway)["http"])
    assert flag(own, "--admin-port") == str(ports(gateway)["metrics"])
    # A pod of a StatefulSet is called NAME-INDEX.SERVICE.
    name, service = engine["metadata"]["name"], engine["spec"]["serviceName"]
    for rank, worker in enumerate(workers):
        own = containers(worker)[-1]
        dialled = str(flag(own, "--engine-endpoint"))
        assert dialled == f"tcp://{name}-$(POD_INDEX).{service}:{ports(engine)['workers']}"
        (index,) = (each for each in own["env"] if each["name"] == "POD_INDEX")
        assert "pod-index" in index["valueFrom"]["fieldRef"]["fieldPath"]
        assert engine["spec"].get("replicas") == worker["spec"].get("replicas")
        assert flag(own, "--rank") == str(rank)
        port = flag(own, "--worker-metrics-port")
        assert int(str(port)) + rank == ports(worker)["metrics"], "a worker adds its rank"
    own = containers(engine)[-1]
    assert flag(own, "--engine-metrics-port") == str(ports(engine)["metrics"])
    for workload in (engine, *workers):
        host = flag(containers(workload)[-1], "--metrics-host")
        assert host == "0.0.0.0", "or no probe reaches it"
    for workload in (gateway, engine, *workers):
        own = containers(workload)[-1]
        for probe in probes(own):
            assert probe["path"] in ("/health/live", "/health/ready")
            assert probe["port"] in ports(workload)
        assert own["readinessProbe"]["httpGet"]["path"] == "/health/ready"
        assert own["livenessProbe"]["httpGet"]["path"] == "/health/live"


def test_volumes_and_what_they_are_made_of_exist(documents: list[Object]) -> None:
    objects = named(documents)
    from_outside = {"api-keys", "hub", "admin-key", "certificate", "registry", "models"}
    from_outside |= {"database"}
    for workload in of_kind(documents, "Deployment", "StatefulSet", "Job"):
        mounted: set[str] = set()
        for container in containers(workload):
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths))
            mounted |= {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == volumes(workload), "each is mounted, and nothing else"
        for volume in pod_of(workload)["spec"]["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in objects
            elif "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                made = ("PersistentVolumeClaim", claim) in objects
                assert made or claim in from_outside
            elif "secret" in volume:
                secret = volume["secret"]
                role = _role(workload).partition("-")[0]
                role = "gateway" if role in ("grpc", "batches") else role
                assert secret["secretName"] in from_outside | {_curve(documents, role)}
                assert not secret["defaultMode"] & 0o007, "keys that everybody reads are refused"


def _curve(documents: list[Object], role: str) -> str:
    """The Secret that this role gets, which a hook makes, or people who bring it along."""
    gateway = gateway_of(documents)
    return re.sub("-gateway$", f"-curve-{role}", gateway["metadata"]["name"])


def test_files_that_flags_name_are_mounted(documents: list[Object]) -> None:
    for workload in of_kind(documents, "Deployment", "StatefulSet"):
        for container in containers(workload):
            folders = [mount["mountPath"] for mount in container["volumeMounts"]]
            files = ("--config", "--api-keys", "--curve-dir", "--model-dir", "--link", "--data-dir")
            for name in files:
                path = flag(container, name)
                if path is not None:
                    assert any(path == f or path.startswith(f + "/") for f in folders), path
        main = containers(workload)[-1]
        plain = "--allow-plain-tcp" in main["args"]
        assert plain != (flag(main, "--curve-dir") is not None)
    for workload in of_kind(documents, "StatefulSet"):
        prepare, main = containers(workload)
        assert flag(prepare, "--link") == flag(main, "--model-dir")
        mounts = {mount["name"]: mount for mount in main["volumeMounts"]}
        assert mounts["models"]["readOnly"]
        assert "--copy-weights" in prepare["args"], "or the volume would lead out of itself"


def test_policies_and_budgets_select_what_is_there(documents: list[Object]) -> None:
    for one in of_kind(documents, "PodDisruptionBudget"):
        roles = {
            _role(each) for each in selected(documents, one["spec"]["selector"]["matchLabels"])
        }
        assert len(roles) == 1
    allowed: dict[str, set[tuple[str, str]]] = {}
    for policy in of_kind(documents, "NetworkPolicy"):
        workload, *_ = selected(documents, policy["spec"]["podSelector"]["matchLabels"])
        for rule in policy["spec"]["ingress"]:
            if "ports" not in rule:  # ranks, among themselves
                (peer,) = rule["from"]
                found = selected(documents, peer["podSelector"]["matchLabels"])
                assert {_role(one) for one in (workload, *found)} == {_role(workload)}
                assert _role(workload).startswith("worker")
                assert len(found) > 1
                continue
            for port in rule["ports"]:
                assert port["port"] in ports(workload)
                peers = allowed.setdefault(f"{_role(workload)}:{port['port']}", set())
                for peer in rule["from"]:
                    labels = peer.get("podSelector", {}).get("matchLabels", {})
                    own = "namespaceSelector" not in peer and labels
                    found = selected(documents, labels) if own else []
                    assert found or not own
                    peers |= {("pod", _role(one)) for one in found} or {("other", str(peer))}
    if allowed:
        fronts = {("pod", component(one)) for one in of_kind(documents, "Deployment")}
        engines = {one for one in allowed if one.endswith(":frontends")}
        for name in engines:
            model = name.removesuffix(":frontends").removeprefix("engine")
            assert allowed[name] == fronts
            assert allowed[f"engine{model}:workers"] == {("pod", f"worker{model}")}
        metrics = [peers for name, peers in allowed.items() if name.endswith(":metrics")]
        assert all(each == metrics[0] for each in metrics)
        assert all(kind == "other" for kind, _ in metrics[0])
        # Of gateways, batches and gRPC one each, of engines and workers one each, of every model.
        assert len(metrics) == len(fronts) + 2 * len(engines)
        assert ("grpc:grpc" in allowed) == (("pod", "grpc") in fronts)
        assert "batches:http" not in allowed
    for one in of_kind(documents, "Deployment", "StatefulSet"):
        chosen = one["spec"]["selector"]["matchLabels"]
        assert selected(documents, chosen) == [one]
        for spread in pod_of(one)["spec"]["topologySpreadConstraints"]:
            assert one in selected(documents, spread["labelSelector"]["matchLabels"])


def _role(workload: Object) -> str:
    """What `_component` says, of a job, too."""
    return component(workload)


def test_pods_may_do_little(documents: list[Object]) -> None:
    for workload in of_kind(documents, "Deployment", "StatefulSet", "Job"):
        spec = pod_of(workload)["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == security["fsGroup"] == 10001, "as deploy/docker has it"
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is (workload["kind"] == "Job")
        for container in containers(workload):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"])


def test_leaving_has_its_time(documents: list[Object]) -> None:
    for workload in of_kind(documents, "Deployment", "StatefulSet"):
        main = containers(workload)[-1]
        timeout = int(flag(main, "--shutdown-timeout") or 5)
        before = main.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert pod_of(workload)["spec"]["terminationGracePeriodSeconds"] >= timeout + before + 5
    for front in of_kind(documents, "Deployment"):
        assert front["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    gateway = gateway_of(documents)
    assert containers(gateway)[0]["lifecycle"]["preStop"]["sleep"]["seconds"] > 0
