"""Transactions: messages become visible when their producer commits, and never if it rolls back."""
