"""What a broker would see in a store, worked out without writing a byte."""
