"""The asyncio shell of our own gRPC client: channels, connections and calls around the core in `http2`."""
