"""Recovery: turns the files that a stop or a crash left into a store that can be served."""
