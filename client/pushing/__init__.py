"""Push consumers below their faces: what is fetched is held, handed to workers, handled, sent back or tried again."""
