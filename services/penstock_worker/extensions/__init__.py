"""Methods that plug-ins add to workers, for `collective_rpc`."""
