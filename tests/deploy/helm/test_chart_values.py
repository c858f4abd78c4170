"""What the chart's values ask for is in its objects, and nothing else is."""

from __future__ import annotations

import copy
import re
from typing import Any

import jsonschema
import pytest

from tests.deploy.helm.chart import CHART, NAMESPACE, check_values, default_values, notes, rendered
from tests.deploy.helm.objects import (
    component,
    containers,
    flag,
    gateway_of,
    named,
    of_kind,
    of_model,
    pod_of,
    ports,
    selected,
)
from tests.deploy.helm.template import TemplateError
from tests.deploy.helm.values import VALUES


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
    (hosts,) = (each for each in containers(gateway)[0]["args"] if "--allowed-hosts=" in each)
    assert hosts.endswith(",llm.example")
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
    (first,) = containers(of_model(documents, "")[0])[1:]
    dialled = str(flag(containers(gateway_of(documents))[-1], "--engine-endpoint")).split(",")
    models = ("small", ""), ("Qwen/Qwen3-8B", "second"), ("vectors", "third")
    for endpoint, (name, key) in zip(dialled, models, strict=True):
        served, _, where = endpoint.partition("=")
        assert served == name
        host = where.removeprefix("dns://").partition(":")[0]
        engine, *workers = of_model(documents, key)
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
    assert flag(containers(gateway_of(rendered()))[-1], "--engine-endpoint") == (
        "dns://prod-engine-headless:5570"
    )


def test_storage_is_the_gateways_and_the_batches_alike() -> None:
    documents = rendered(VALUES["gRPC, batches and a second model"])
    fronts = of_kind(documents, "Deployment")
    assert {component(one) for one in fronts} == {"gateway", "grpc", "batches"}
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
        offset = 0 if component(front) == "gateway" else 1
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
    assert {component(one) for one in fronts} == {"gateway", "batches"}
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
