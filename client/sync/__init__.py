"""The clients for threads: `gen/` is generated, and the files here are written by hand."""
