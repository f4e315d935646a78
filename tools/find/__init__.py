"""Finding single messages: asked of live brokers, or read from the files of a store, without its recovery."""
