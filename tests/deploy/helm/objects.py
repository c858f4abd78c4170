"""What the rendered objects are to one another: who selects whom, and what a pod is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]
WORKLOADS = ("Deployment", "StatefulSet", "Job")


def named(documents: list[Object]) -> dict[tuple[str, str], Object]:
    """Objects by kind and name, of which there is one each."""
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(found) == len(documents), "two objects of one kind have one name"
    return found


def of_kind(documents: list[Object], *kinds: str) -> list[Object]:
    return [one for one in documents if one["kind"] in kinds]


def pod_of(workload: Object) -> Object:
    """Its pods' template."""
    return dict(workload["spec"]["template"])


def containers(workload: Object) -> list[Object]:
    """Init containers first."""
    spec = pod_of(workload)["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def volumes(workload: Object) -> set[str]:
    """Names of the volumes that its containers may mount."""
    spec = pod_of(workload)["spec"]
    claims = workload["spec"].get("volumeClaimTemplates", ())
    names = [volume["name"] for volume in spec["volumes"]]
    names += [claim["metadata"]["name"] for claim in claims]
    assert len(names) == len(set(names))
    return set(names)


def ports(workload: Object) -> dict[str, int]:
    """The ports of its pods, by name."""
    found = [port for each in containers(workload) for port in each.get("ports", ())]
    assert len({port["name"] for port in found}) == len(found)
    return {port["name"]: port["containerPort"] for port in found}


def selected(documents: list[Object], labels: dict[str, str]) -> list[Object]:
    """Workloads whose pods have these labels."""
    return [
        one
        for one in of_kind(documents, *WORKLOADS)
        if labels.items() <= pod_of(one)["metadata"]["labels"].items()
    ]


def flag(container: Object, name: str) -> str | None:
    """What `--name=` says in its arguments."""
    found = [each for each in container["args"] if each.startswith(f"{name}=")]
    assert len(found) <= 1
    return found[0].partition("=")[2] if found else None


def probes(container: Object) -> Iterator[Object]:
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        yield container[name]["httpGet"]


def component(workload: Object) -> str:
    return str(pod_of(workload)["metadata"]["labels"]["app.kubernetes.io/component"])


def gateway_of(documents: list[Object]) -> Object:
    return next(one for one in of_kind(documents, "Deployment") if component(one) == "gateway")


def of_model(documents: list[Object], key: str) -> list[Object]:
    """The engines, and each rank's workers. key: empty for the first model."""
    names = [f"{role}-{key}" if key else role for role in ("engine", "worker")]
    found = [one for one in of_kind(documents, "StatefulSet") if component(one) in names]
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))
