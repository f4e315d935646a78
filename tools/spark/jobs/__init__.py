"""Jobs over the stores of a fleet and over live clusters: functions that return DataFrames, and `pocketmq spark …`."""
