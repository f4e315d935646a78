"""The parts of producers: messages become batches, batches are sent, callers get receipts."""
