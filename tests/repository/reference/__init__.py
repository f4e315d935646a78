"""The generated blocks of the reference in docs/: `make reference` writes them, test_reference.py compares them."""
