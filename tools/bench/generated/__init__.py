"""Big stores for benches, made by the column in seconds: sound to a broker of either kind, the same each time."""
