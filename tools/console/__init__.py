"""The console: pages and an administration API over HTTP, at the broker's own port."""
