"""Transactions: messages that become visible only when their sender says so, and never if he takes them back."""
