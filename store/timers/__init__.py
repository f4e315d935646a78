"""Messages for any time, on disk as Apache keeps them: the wheel, the log behind it, and how far both have come."""
