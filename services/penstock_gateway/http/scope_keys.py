"""Keys of a request's scope that several packages read."""

REQUEST_ID = "penstock.request_id"
"""The client's x-request-id, or a generated id."""
CALL = "penstock.call"
"""The method's path, where a call came over gRPC."""
