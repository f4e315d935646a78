"""Groups that share queues: who is a member, what was agreed on, and who holds which queue of this broker."""
