"""`format("rocketmq")`: a live cluster as a Spark source, batch and streaming, and as a sink.

Pure parts (offsets, options, limits, ranges, starts, stream positions, row keys) are separate from modules that ask
brokers (`cluster`, `fetching`) and from what Spark calls (`source`, `readers`, `sink`), which alone imports pyspark.
"""
