"""Ways to use the chart: values that people give."""

from __future__ import annotations

from typing import Any

VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "two engines on CPUs": {
        "engines": 2,
        "image": {"repository": "registry.example/team/penstock", "tag": "1.2.3"},
        "model": {"storage": {"mode": "shared", "size": "5Gi", "storageClass": "nfs"}},
        "gateway": {
            "replicas": 4,
            "autoscaling": {"enabled": True, "metric": "CPU"},
            "extraArgs": ["--keepalive-interval=5"],
            "extraEnv": [{"name": "OTEL_SERVICE_NAME", "value": "llm"}],
        },
        "config": {
            "engine": {"worker": {"threads": 8}, "scheduler": {"max_waiting_tokens": 8_000_000}},
            "gateway": {"otlp_traces_endpoint": "http://otel:4318/v1/traces"},
        },
    },
    "GPUs": {
        "engines": 3,
        "model": {
            "name": "Qwen/Qwen3-8B",
            "storage": {"mode": "shared", "existingClaim": "models"},
            "hubToken": {"existingSecret": "hub", "key": "token"},
        },
        "worker": {
            "gpu": {"count": 1},
            "runtimeClassName": "nvidia",
            "resources": {"requests": None, "limits": {"memory": "64Gi"}},
            "nodeSelector": {"nvidia.com/gpu.present": "true"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    },
    "ranks": {
        "engines": 2,
        "ranks": {"tensor": 2, "pipeline": 2},
        "worker": {"gpu": {"count": 1}, "extraEnv": [{"name": "NCCL_DEBUG", "value": "WARN"}]},
    },
    "keys and curve": {
        "fullnameOverride": "llm-service",
        "apiKeys": {"existingSecret": "api-keys", "key": "keys.yaml"},
        "curve": {"create": False},
        "image": {"pullSecrets": [{"name": "registry"}]},
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
        "gateway": {"shutdownTimeout": 600, "podAnnotations": {"team": "search"}},
    },
    "plain network, nothing that can be left out": {
        "curve": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "gateway": {"service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a/b": "c"}}},
        "config": {"engine": None},
    },
    "ingress and monitors": {
        "apiKeys": {"existingSecret": "api-keys"},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "llm.example.org",
            "tlsSecret": "certificate",
        },
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "gatewayKey": {"existingSecret": "admin-key", "key": "api-key"},
        },
        "gateway": {
            "autoscaling": {"enabled": True, "matchLabels": {"service": "prod"}, "maxReplicas": 40}
        },
    },
    "gRPC, batches and a second model": {
        "apiKeys": {"existingSecret": "api-keys"},
        "grpc": {"enabled": True, "service": {"headless": True}},
        "storage": {
            "enabled": True,
            "databaseUrl": "postgresql+psycopg://penstock@database/penstock",
            "databasePassword": {"existingSecret": "database", "key": "password"},
            "responseHours": 24,
        },
        "batches": {"replicas": 2, "extraArgs": ["--batch-concurrency=64"]},
        "model": {"served": "small"},
        "moreModels": [
            {
                "key": "second",
                "model": {"name": "Qwen/Qwen3-8B"},
                "engines": 2,
                "ranks": {"tensor": 2, "pipeline": 1},
                "worker": {"gpu": {"count": 1}},
            },
            {"key": "third", "model": {"name": "all-minilm-l6-v2", "served": "vectors"}},
        ],
        "serviceMonitor": {
            "enabled": True,
            "gatewayKey": {"existingSecret": "admin-key", "key": "api-key"},
        },
    },
    "files in a store": {
        "storage": {
            "enabled": True,
            "databaseUrl": "postgresql+psycopg://penstock@database/penstock",
            "s3": {
                "url": "s3://bucket/penstock",
                "endpointUrl": "https://store.example",
                "region": "eu-central-1",
                "credentials": {
                    "existingSecret": "store",
                    "idKey": "access-key-id",
                    "secretKey": "secret-access-key",
                },
            },
        },
        "networkPolicy": {"gatewayFrom": [{"namespaceSelector": {}}]},
    },
    "Gateway API": {
        "apiKeys": {"existingSecret": "api-keys"},
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
            "hostnames": ["llm.example.org", "*.llm.example.org"],
        },
    },
    "an inference pool": {
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "allowOpen": True},
        "inferencePool": {
            "enabled": True,
            "endpointPicker": {"name": "picker", "failureMode": "FailClose"},
        },
    },
    "engines by the queue": {
        "engines": 2,
        "gateway": {"shutdownTimeout": 120},
        "queueScaling": {
            "enabled": True,
            "maxEngines": 8,
            "serverAddress": "http://prometheus.monitoring:9090",
            "triggerAuthentication": "prometheus",
        },
        "serviceMonitor": {"enabled": True},
        "moreModels": [
            {"key": "second", "model": {"name": "a/b"}, "ranks": {"tensor": 2, "pipeline": 1}}
        ],
    },
    "custom metric by pods": {
        "gateway": {"autoscaling": {"enabled": True, "metric": "Pods", "name": "waiting"}}
    },
}
