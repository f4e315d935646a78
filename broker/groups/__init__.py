"""Groups: what they are and have finished, who is a member, who holds which queue, what failed and comes again."""
