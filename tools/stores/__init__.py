"""Stores read cold, by every tool and by Spark: where they are, and what a broker would make of them."""
