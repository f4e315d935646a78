"""Why a message is where it is: its life, told from the files of a store alone."""
