"""The asyncio shell of our own gRPC server: connections, TLS and time around the cores in `http2` and `grpc_calls`."""
