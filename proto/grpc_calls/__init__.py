"""gRPC on HTTP/2: heads, messages, calls and streams of a connection (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md)."""
