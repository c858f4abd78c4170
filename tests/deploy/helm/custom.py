"""Schemas of the custom resources that the chart makes: as much of each definition as it uses, and
nothing that it doesn't, so that a misspelt field is an error."""

from __future__ import annotations

from typing import Any

import yaml


def _resource(version: str, kind: str, spec: str) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": version},
            "kind": {"const": kind},
            "metadata": {"type": "object"},
            "spec": yaml.safe_load(spec),
        },
    }


SERVICE_MONITOR = """
type: object
additionalProperties: false
required: [selector, endpoints]
properties:
  jobLabel: {type: string}
  selector:
    type: object
    additionalProperties: false
    properties: {matchLabels: {type: object, additionalProperties: {type: string}}}
  endpoints:
    type: array
    minItems: 1
    items:
      type: object
      additionalProperties: false
      properties:
        port: {type: string}
        path: {type: string}
        interval: {type: string, pattern: "^[0-9]+(ms|s|m|h)$"}
        authorization:
          type: object
          additionalProperties: false
          properties:
            type: {type: string}
            credentials:
              type: object
              additionalProperties: false
              required: [name, key]
              properties: {name: {type: string}, key: {type: string}}
"""

INFERENCE_POOL = """
type: object
additionalProperties: false
required: [selector, targetPorts, endpointPickerRef]
properties:
  selector:
    type: object
    additionalProperties: false
    required: [matchLabels]
    properties:
      matchLabels: {type: object, minProperties: 1, additionalProperties: {type: string}}
  targetPorts:
    type: array
    minItems: 1
    maxItems: 8
    items: &port
      type: object
      additionalProperties: false
      required: [number]
      properties: {number: {type: integer, minimum: 1, maximum: 65535}}
  endpointPickerRef:
    type: object
    additionalProperties: false
    # Of a Service, and that is what it is without a kind, the port must be named.
    required: [name, port]
    properties:
      name: {type: string, minLength: 1, maxLength: 253}
      port: *port
      failureMode: {enum: [FailOpen, FailClose]}
"""

HTTP_ROUTE = """
type: object
additionalProperties: false
properties:
  parentRefs:
    type: array
    minItems: 1
    maxItems: 32
    items:
      type: object
      additionalProperties: false
      required: [name]
      properties:
        group: {type: string}
        kind: {type: string}
        name: {type: string, minLength: 1}
        namespace: {type: string, minLength: 1, maxLength: 63}
        sectionName: {type: string}
        port: {type: integer}
  hostnames:
    type: array
    maxItems: 16
    items:
      type: string
      pattern: >-
        ^(\\*\\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$
  rules:
    type: array
    minItems: 1
    items:
      type: object
      additionalProperties: false
      properties:
        matches:
          type: array
          items:
            type: object
            additionalProperties: false
            properties:
              path:
                type: object
                additionalProperties: false
                properties:
                  type: {enum: [Exact, PathPrefix, RegularExpression]}
                  value: {type: string, pattern: "^/"}
        backendRefs:
          type: array
          items:
            type: object
            additionalProperties: false
            required: [name]
            properties:
              group: {type: string}
              kind: {type: string}
              name: {type: string}
              port: {type: integer}
        timeouts:
          type: object
          additionalProperties: false
          properties: {request: {type: string, pattern: "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}}
"""

SCALED_OBJECT = """
type: object
additionalProperties: false
required: [scaleTargetRef, triggers]
properties:
  scaleTargetRef:
    type: object
    additionalProperties: false
    required: [name]
    properties: {apiVersion: {type: string}, kind: {type: string}, name: {type: string}}
  minReplicaCount: {type: integer, minimum: 0}
  maxReplicaCount: {type: integer, minimum: 1}
  pollingInterval: {type: integer, minimum: 1}
  advanced:
    type: object
    additionalProperties: false
    properties:
      horizontalPodAutoscalerConfig:
        type: object
        additionalProperties: false
        properties:
          behavior:
            type: object
            additionalProperties: false
            properties: {scaleUp: &rules {
              type: object,
              additionalProperties: false,
              properties: {
                stabilizationWindowSeconds: {type: integer, minimum: 0, maximum: 3600},
                policies: {type: array, items: {
                  type: object,
                  additionalProperties: false,
                  required: [type, value, periodSeconds],
                  properties: {
                    type: {enum: [Pods, Percent]},
                    value: {type: integer, minimum: 1},
                    periodSeconds: {type: integer, minimum: 1, maximum: 1800}}}}}},
              scaleDown: *rules}
  triggers:
    type: array
    minItems: 1
    items:
      type: object
      additionalProperties: false
      required: [type, metadata]
      properties:
        type: {type: string}
        metricType: {enum: [AverageValue, Value]}
        # Of all triggers: texts, whatever they mean.
        metadata:
          type: object
          required: [serverAddress, query, threshold]
          additionalProperties: {type: string}
        authenticationRef:
          type: object
          additionalProperties: false
          required: [name]
          properties: {name: {type: string}}
"""

CUSTOM = {
    (version, kind): _resource(version, kind, spec)
    for version, kind, spec in (
        ("monitoring.coreos.com/v1", "ServiceMonitor", SERVICE_MONITOR),
        ("inference.networking.k8s.io/v1", "InferencePool", INFERENCE_POOL),
        ("gateway.networking.k8s.io/v1", "HTTPRoute", HTTP_ROUTE),
        ("keda.sh/v1alpha1", "ScaledObject", SCALED_OBJECT),
    )
}
