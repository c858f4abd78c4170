"""Where a request's id lies in its scope: the client's x-request-id, or one that was made."""

REQUEST_ID = "penstock.request_id"
