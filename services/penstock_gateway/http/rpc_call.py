"""The method's path in the scope of a call that came over gRPC."""

CALL = "penstock.call"
