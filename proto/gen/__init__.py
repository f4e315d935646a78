"""Generated protobuf messages; `make proto` writes them."""
