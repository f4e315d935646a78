"""The history of one message, from the files of a store alone."""
