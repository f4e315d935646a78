"""Rows straight from the files of stores, without recovery: a plan of tasks, and the batches of each."""
