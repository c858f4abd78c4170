"""A request's id in its scope: the client's x-request-id, or a generated one."""

REQUEST_ID = "penstock.request_id"
