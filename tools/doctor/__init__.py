"""What a start would do to a store, worked out for both brokers without writing a byte."""
