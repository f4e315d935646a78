"""What became of messages for groups but being read: skipped by filters, lost, left out by an administrator's move."""
