"""One directory of files becomes a message store: synchronous, no asyncio, no network."""
