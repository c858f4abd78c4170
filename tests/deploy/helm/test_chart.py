"""The chart: every object fits Kubernetes' schemas, and they fit each other and Penstock."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from penstock.cli.commands import BY_NAME
from penstock.config.settings import ServeConfig
from penstock.config.tree import load_file
from tests.deploy.helm.chart import (
    CHART,
    NAMESPACE,
    by_helm,
    check_values,
    default_values,
    notes,
    rendered,
)
from tests.deploy.helm.custom import CUSTOM
from tests.deploy.helm.objects import (
    Object,
    containers,
    flag,
    named,
    of_kind,
    pod_of,
    ports,
    probes,
    selected,
    volumes,
)
from tests.deploy.helm.template import TemplateError
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
    fronts = {_component(one) for one in of_kind(documents, "Deployment")}
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
    gateway = _gateway(documents)
    first = _of_model(documents, "")
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


def _component(workload: Object) -> str:
    return str(pod_of(workload)["metadata"]["labels"]["app.kubernetes.io/component"])


def _gateway(documents: list[Object]) -> Object:
    return next(one for one in of_kind(documents, "Deployment") if _component(one) == "gateway")


def _of_model(documents: list[Object], key: str) -> list[Object]:
    """The engines, and each rank's workers. key: empty for the first model."""
    names = [f"{role}-{key}" if key else role for role in ("engine", "worker")]
    found = [one for one in of_kind(documents, "StatefulSet") if _component(one) in names]
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


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
    gateway = _gateway(documents)
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
        fronts = {("pod", _component(one)) for one in of_kind(documents, "Deployment")}
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
    return _component(workload)


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
    gateway = _gateway(documents)
    assert containers(gateway)[0]["lifecycle"]["preStop"]["sleep"]["seconds"] > 0


def test_monitors_find_metrics_and_name_the_jobs_of_the_rules() -> None:
    documents = rendered(VALUES["ingress and monitors"])
    more = rendered(VALUES["gRPC, batches and a second model"])
    jobs = set()
    for found, monitor in (
        (each, one) for each in (documents, more) for one in of_kind(each, "ServiceMonitor")
    ):
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = (
            one for one in of_kind(found, "Service") if labels <= one["metadata"]["labels"].items()
        )
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
        job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
        assert ("authorization" in endpoint) == (job == "gateway")
        jobs.add(job)
    assert jobs == {"gateway", "engine", "worker"}


def test_the_autoscaler_scales_the_gateways_and_nobody_else_does() -> None:
    for name, kind in (
        ("ingress and monitors", "External"),
        ("custom metric by pods", "Pods"),
        ("two engines on CPUs", "Resource"),
    ):
        documents = rendered(VALUES[name])
        (scaler,) = of_kind(documents, "HorizontalPodAutoscaler")
        target = scaler["spec"]["scaleTargetRef"]
        gateway = named(documents)[target["kind"], target["name"]]
        assert "replicas" not in gateway["spec"], "an upgrade would undo what it decided"
        assert [metric["type"] for metric in scaler["spec"]["metrics"]] == [kind]
    assert of_kind(rendered(), "HorizontalPodAutoscaler") == []


def test_the_ingress_leads_to_the_gateways_and_lets_streams_through() -> None:
    documents = rendered(VALUES["ingress and monitors"])
    (ingress,) = of_kind(documents, "Ingress")
    (rule,) = ingress["spec"]["rules"]
    target = rule["http"]["paths"][0]["backend"]["service"]
    service = named(documents)["Service", target["name"]]
    assert target["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    notes_for = ingress["metadata"]["annotations"]
    assert notes_for["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]


def test_an_ingress_that_everybody_may_use_has_to_be_meant() -> None:
    with pytest.raises(TemplateError, match="lets everybody ask"):
        rendered({"ingress": {"enabled": True}})
    documents = rendered({"ingress": {"enabled": True, "allowOpen": True}})
    assert of_kind(documents, "Ingress")
    (gateway,) = of_kind(documents, "Deployment")
    assert "--allow-open" in containers(gateway)[0]["args"]
    named = rendered({"ingress": {"enabled": True, "allowOpen": True, "host": "llm.example"}})
    (gateway,) = [
        each
        for each in named
        if each["kind"] == "Deployment" and "gateway" in str(each["metadata"]["name"])
    ]
    assert "--allowed-hosts=llm.example" in containers(gateway)[0]["args"]
    (closed,) = of_kind(rendered(VALUES["keys and curve"]), "Deployment")
    assert "--allow-open" not in containers(closed)[0]["args"]


def test_gpus_are_asked_for_where_they_are_wanted() -> None:
    worker = named(rendered(VALUES["GPUs"]))["StatefulSet", "prod-worker"]
    main = containers(worker)[-1]
    assert main["image"].startswith("penstock-worker-cuda:")
    assert main["resources"] == {"limits": {"memory": "64Gi", "nvidia.com/gpu": 1}}
    # Of a root that is read-only: where compiled kernels may lie.
    assert {"name": "kernels", "mountPath": "/cache"} in main["volumeMounts"]
    plain = containers(named(rendered())["StatefulSet", "prod-worker"])[-1]
    assert plain["image"].startswith("penstock-worker:")
    assert "nvidia.com/gpu" not in plain["resources"]["limits"]


def test_each_rank_has_its_own_pods_and_the_engine_waits_for_all() -> None:
    documents = rendered(VALUES["ranks"])
    engine = containers(named(documents)["StatefulSet", "prod-engine"])[-1]
    assert flag(engine, "--tensor-parallel-size") == flag(engine, "--pipeline-parallel-size") == "2"
    for rank in range(4):
        worker = named(documents)["StatefulSet", f"prod-worker-{rank}"]
        own = containers(worker)[-1]
        assert flag(own, "--rank-host") == "$(POD_IP)"
        assert [each["name"] for each in own["env"]] == ["POD_INDEX", "POD_IP", "NCCL_DEBUG"]
    # One that is alone is as it was, so that an upgrade changes nothing.
    alone = named(rendered())["StatefulSet", "prod-worker"]
    assert "penstock/rank" not in alone["spec"]["selector"]["matchLabels"]
    assert flag(containers(alone)[-1], "--rank-host") is None
    assert "prod-worker-0" in notes(VALUES["ranks"])


def test_several_models_have_engines_and_workers_each_and_keep_apart() -> None:
    documents = rendered(VALUES["gRPC, batches and a second model"])
    objects = named(documents)
    (first,) = containers(_of_model(documents, "")[0])[1:]
    dialled = str(flag(containers(_gateway(documents))[-1], "--engine-endpoint")).split(",")
    models = ("small", ""), ("Qwen/Qwen3-8B", "second"), ("vectors", "third")
    for endpoint, (name, key) in zip(dialled, models, strict=True):
        served, _, where = endpoint.partition("=")
        assert served == name
        host = where.removeprefix("dns://").partition(":")[0]
        engine, *workers = _of_model(documents, key)
        assert selected(documents, objects["Service", host]["spec"]["selector"]) == [engine]
        prepare, own = containers(engine)
        for each in (engine, *workers):
            assert flag(containers(each)[-1], "--model-dir") == flag(own, "--model-dir")
            assert each["spec"]["replicas"] == (2 if key == "second" else 1)
            place = each["spec"]["template"]["spec"]["volumes"]
            secrets = {one["secret"]["secretName"] for one in place if "secret" in one}
            assert secrets == {f"prod-curve-{'engine' if each is engine else 'worker'}"}
        assert len(workers) == (2 if key == "second" else 1)
        assert (flag(own, "--model-dir") == flag(first, "--model-dir")) == (not key)
        assert prepare["args"][1] == (name if key == "second" else prepare["args"][1])
    # With one model, nothing is called anything else than it was.
    assert flag(containers(_gateway(rendered()))[-1], "--engine-endpoint") == (
        "dns://prod-engine-headless:5570"
    )


def test_storage_is_the_gateways_and_the_batches_alike() -> None:
    documents = rendered(VALUES["gRPC, batches and a second model"])
    fronts = of_kind(documents, "Deployment")
    assert {_component(one) for one in fronts} == {"gateway", "grpc", "batches"}
    (claim,) = (
        one
        for one in of_kind(documents, "PersistentVolumeClaim")
        if one["metadata"]["name"] == "prod-data"
    )
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    said = set()
    for front in fronts:
        main = containers(front)[-1]
        flags = ("--data-dir", "--database-url", "--stored-response-hours", "--api-keys")
        said.add(tuple(flag(main, name) for name in flags))
        (password,) = (each for each in main["env"] if each["name"] == "PGPASSWORD")
        assert password["valueFrom"]["secretKeyRef"] == {"name": "database", "key": "password"}
        # The process that isn't a gateway of HTTP has its metrics behind the gateways'.
        offset = 0 if _component(front) == "gateway" else 1
        assert int(str(flag(main, "--admin-port"))) + offset == ports(front)["metrics"]
    assert len(said) == 1
    with pytest.raises(TemplateError, match="SQLite"):
        rendered({"storage": {"enabled": True}})


def test_contents_go_to_a_store() -> None:
    documents = rendered(VALUES["files in a store"])
    assert not [
        one
        for one in of_kind(documents, "PersistentVolumeClaim")
        if one["metadata"]["name"] == "prod-data"
    ]
    fronts = of_kind(documents, "Deployment")
    assert {_component(one) for one in fronts} == {"gateway", "batches"}
    for front in fronts:
        main = containers(front)[-1]
        assert flag(main, "--files-url") == "s3://bucket/penstock"
        assert flag(main, "--s3-endpoint-url") == "https://store.example"
        known = {each["name"]: each for each in main["env"]}
        assert known["AWS_DEFAULT_REGION"]["value"] == "eu-central-1"
        for name, key in (
            ("AWS_ACCESS_KEY_ID", "access-key-id"),
            ("AWS_SECRET_ACCESS_KEY", "secret-access-key"),
        ):
            assert known[name]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": key}
        (data,) = (each for each in pod_of(front)["spec"]["volumes"] if each["name"] == "data")
        assert data["emptyDir"] == {"sizeLimit": "10Gi"}


def test_only_what_concerns_a_pod_restarts_it() -> None:
    """The checksums: a gateway's setting leaves engines and workers alone."""
    before, after = (
        {
            one["metadata"]["name"]: pod_of(one)["metadata"]["annotations"]["checksum/config"]
            for one in of_kind(rendered({"config": config}), "Deployment", "StatefulSet")
        }
        for config in ({}, {"gateway": {"keepalive_interval": 5}})
    )
    assert before["prod-gateway"] != after["prod-gateway"]
    assert before["prod-engine"] == after["prod-engine"]
    assert before["prod-worker"] == after["prod-worker"]
    changed = rendered({"config": {"engine": {"scheduler": {"max_num_seqs": 8}}}})
    engine = pod_of(named(changed)["StatefulSet", "prod-engine"])["metadata"]["annotations"]
    assert engine["checksum/config"] != before["prod-engine"]


def test_another_model_is_another_folder() -> None:
    one, two = (
        named(rendered({"model": {"name": name}}))["StatefulSet", "prod-engine"]
        for name in ("one", "two")
    )
    assert flag(containers(one)[-1], "--model-dir") != flag(containers(two)[-1], "--model-dir")


def test_the_schema_knows_every_value_and_refuses_others() -> None:
    values = default_values()
    check_values(values)
    for wrong in (
        {"engines": "2"},
        {"gatway": {}},
        {"gateway": {"replica": 2}},
        {"worker": {"gpu": {"count": -1}}},
        {"curve": {"enabled": "yes"}},
        {"model": {"storage": {"mode": "ReadWriteMany"}}},
        {"gateway": {"autoscaling": {"metric": "Memory"}}},
        {"gateway": {"extraArgs": ["keepalive"]}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            rendered(wrong)
    for path, value in _leaves(values):
        broken = copy.deepcopy(values)
        place = broken
        for step in path[:-1]:
            place = place[step]
        if path[0] != "config":  # Penstock's own; see test_arguments_are_penstocks_own.
            place[path[-1]] = [] if not isinstance(value, list) else "text"
            with pytest.raises(jsonschema.ValidationError):
                check_values(broken)


def _leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found += _leaves(value, (*path, key))
        else:
            found.append(((*path, key), value))
    return found


def test_every_value_is_used() -> None:
    text = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    for path, _ in _leaves(default_values()):
        if path[0] not in ("config",) and path[-1] not in ("requests", "limits", "cpu", "memory"):
            assert re.search(rf"\.{path[-1]}\b", text) or re.search(rf"\.{path[-2]}\b", text), path


def test_the_notes_name_what_is_there() -> None:
    documents = named(rendered())
    text = notes()
    for kind, name in re.findall(r"(service|statefulset)/([-\w]+)", text):
        proper = {"service": "Service", "statefulset": "StatefulSet"}[kind]
        assert (proper, name) in documents
    assert NAMESPACE in text
    assert "no API keys" in text
    assert "no API keys" not in notes(VALUES["keys and curve"])
