"""SQL92 filters over properties, with Apache's grammar: text to words to a tree to closures. Pure."""
