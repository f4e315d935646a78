"""Stores read cold, by every tool and by Spark, in one of two ways.

`cold_store` opens a store as a broker would have it after its recovery; `scan/` reads the rows of its files as they
lie. `locations` says where stores are, `schemas` what columns their rows have.
"""
