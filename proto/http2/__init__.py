"""HTTP/2 (RFC 9113) as a server speaks it: bytes in, events out; no sockets, no clock, no asyncio."""
