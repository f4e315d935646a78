"""Messages: validated, appended and acknowledged; fetched, filtered and looked up."""
