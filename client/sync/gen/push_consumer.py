"""`PushConsumer`, generated from client/push_consumer.py by `make sync`. Edit that file."""

from __future__ import annotations

from collections.abc import Mapping

from ...push_consumer import AnyListener
from ...pushing.push_metrics import PushMetrics
from ..thread_push_consumer import ThreadPushConsumer


class PushConsumer(ThreadPushConsumer):
    """Calls LISTENER with messages for GROUP, in the background. Settings are those of PushConfig.

    Any thread may use it.
    """

    def listener(self, function: AnyListener) -> AnyListener:
        """Have FUNCTION called; a decorator. Raises ConfigError if it cannot be called with a message."""
        self._plan.take(function)
        return function

    def start(self) -> None:
        """Begin; `with` and `run` do so."""
        return self._start()

    def wait(self) -> None:
        """Return once it is closed, by another thread, or at SIGTERM or Ctrl-C, if this is the main one.

        Raises what the group refused it with.
        """
        return self._wait()

    def run(self) -> None:
        """Start, and go on until it is closed, or at SIGTERM or Ctrl-C; then close, and return.

        Listeners at work end first, within close_timeout_ms. A second signal does not wait for them.
        """
        with self:
            self.wait()

    def metrics(self) -> PushMetrics:
        """Return what it counts, at this moment; after the end, what it had counted."""
        return self._metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    def close(self) -> None:
        """Deliver nothing more, let listeners at work end within close_timeout_ms, commit, disconnect."""
        return self._close()
