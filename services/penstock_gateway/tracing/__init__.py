"""OpenTelemetry traces: one span for each request, and where its time in the engine went.

trace    what one request gathers           layer   the ASGI layer around the endpoints
spans    that as spans and attributes       tracer  sampling and export

`spans` and `tracer` alone import OpenTelemetry, which is an extra (`otel`): they are loaded where
--otlp-traces-endpoint asks for them.
"""
