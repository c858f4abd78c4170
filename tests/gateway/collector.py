"""A small OpenTelemetry collector: takes traces by OTLP over HTTP, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Seen:
    """One span, as it came over the wire. Times in nanoseconds since 1970."""

    def __init__(self, span: Any, resource: dict[str, Any]) -> None:
        self.name: str = span.name
        self.trace: str = span.trace_id.hex()
        self.id: str = span.span_id.hex()
        self.parent: str = span.parent_span_id.hex()
        self.state: str = span.trace_state
        self.begin: int = span.start_time_unix_nano
        self.end: int = span.end_time_unix_nano
        self.kind: int = span.kind
        self.attributes = {pair.key: _value(pair.value) for pair in span.attributes}
        self.events = [event.name for event in span.events]
        self.failed: bool = span.status.code == 2
        self.message: str = span.status.message
        self.resource = resource

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / 1e9


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


class Collector:
    """Use it as a context manager. delay: seconds before it answers."""

    def __init__(self, delay: float = 0.0) -> None:
        self.spans: list[Seen] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                time.sleep(delay)
                collector.paths.add(self.path)
                collector.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            resource = {pair.key: _value(pair.value) for pair in group.resource.attributes}
            for scope in group.scope_spans:
                self.spans += [Seen(span, resource) for span in scope.spans]

    def wait(self, wanted: Callable[[list[Seen]], bool], timeout: float = 60.0) -> list[Seen]:
        """The spans, once they are as wanted."""
        deadline = time.monotonic() + timeout
        while not wanted(self.spans):
            found = [(span.name, span.attributes) for span in self.spans]
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the collector has {found}")
            time.sleep(0.02)
        return list(self.spans)

    def request(self, name: str, timeout: float = 60.0) -> tuple[Seen, list[Seen]]:
        """The server span of the request with this id, and its children in order of time."""

        def is_it(span: Seen) -> bool:
            return span.attributes.get("gen_ai.request.id") == name

        self.wait(lambda spans: any(map(is_it, spans)), timeout)
        (root,) = filter(is_it, self.spans)
        children = [span for span in self.spans if span.parent == root.id]
        return root, sorted(children, key=lambda span: (span.begin, span.end))
