"""The clients for ordinary threads: `gen/` is generated, the files here hold what is written by hand."""
