"""`PushConsumer`, generated from client/push_consumer.py by `make sync`. Edit that file."""

from __future__ import annotations

from collections.abc import Mapping

from ...push_consumer import AnyListener
from ...pushing.push_metrics import PushMetrics
from ..thread_push_consumer import ThreadPushConsumer


class PushConsumer(ThreadPushConsumer):
    """Calls a listener with messages for a group, in the background. Settings are those of PushConfig.

    Thread-safe.
    """

    def listener(self, function: AnyListener) -> AnyListener:
        """Set FUNCTION as the listener: a decorator. Raises ConfigError if it cannot be called with one argument."""
        self._plan.take(function)
        return function

    def start(self) -> None:
        """Start to fetch and process messages. `with` and `run` call it."""
        return self._start()

    def wait(self) -> None:
        """Return when another thread closes the consumer, or in the main thread at SIGTERM or Ctrl-C.

        Raises the error if the group refused the consumer.
        """
        return self._wait()

    def run(self) -> None:
        """Start, and run until the consumer is closed, or until SIGTERM or Ctrl-C. Then close it.

        It waits up to close_timeout_ms for running listeners. A second signal does not wait for them.
        """
        with self:
            self.wait()

    def metrics(self) -> PushMetrics:
        """Return a snapshot of the metrics, also after the consumer was closed."""
        return self._metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics in the Prometheus text format (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    def close(self) -> None:
        """Stop delivering, wait up to close_timeout_ms for running listeners, commit, and disconnect."""
        return self._close()
