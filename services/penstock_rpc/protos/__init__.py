"""The services' messages. The `_pb2` modules are made of the .proto files by
`python -m penstock_rpc.protos`."""
