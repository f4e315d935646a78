"""What in topics, groups and their messages is likely a mistake, though nothing fails."""
