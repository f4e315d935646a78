"""What processes say to each other, and the record that is the same on the wire and on disk."""
