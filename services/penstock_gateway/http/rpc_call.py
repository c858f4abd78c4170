"""Where the scope of a call that came over gRPC keeps its method's path."""

CALL = "penstock.call"
