"""How far consumer groups are behind: rows, verdicts, two moments compared. From cold files or a live cluster."""
