"""Messages of stores as Parquet files, without Spark."""
