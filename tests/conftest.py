"""What every test gets: Hypothesis without a deadline, because a shared machine is sometimes slow, and with blobs that
replay a failure."""

from hypothesis import settings

settings.register_profile("pocketmq", deadline=None, print_blob=True)
settings.load_profile("pocketmq")
