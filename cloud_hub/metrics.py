"""The engine's numbers for Prometheus, at /metrics of `metrics.port`; docs/metrics.md defines them.

Read when somebody asks: the engine counts plain numbers, and knows nothing of this.
"""

import errno
import math
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cloud_hub.engine.counters import Counters, Distribution
from cloud_hub.engine.loop import Engine
from fleet.errors import AddressInUseError

_PREFIX = "ciar_engine_"


@contextmanager
def exposed(engine: Engine, host: str, port: int | None) -> Iterator[None]:
    """Answers on the port until the context ends; without one, does nothing.

    Raises:
        AddressInUseError: Another process holds the port.
    """
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise AddressInUseError(
            f"port {port} of {host} is in use: end what holds it, or set metrics.port"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class EngineCollector(Collector):
    """Turns an engine's counters into metric families."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        counters, load = self._engine.counters, self._engine.load
        for name, text, value in (
            ("waiting_requests", "Requests that wait for a forward.", load.jobs),
            ("waiting_tokens", "Tokens of their next forwards.", load.tokens),
            ("sessions", "Open pictures.", load.sessions),
            ("slots", "Pictures that fit into the KV cache.", load.slots),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value)
        for name, text in _SUMS.items():
            yield CounterMetricFamily(_PREFIX + name, text, getattr(counters, name))
        yield from _by_label(counters)
        for name, text in _DISTRIBUTIONS.items():
            yield _histogram(_PREFIX + name, text, getattr(counters, name))


_SUMS = {
    "forwards": "Forward passes.",
    "spans": "Sessions' parts in all forwards.",
    "tokens": "Tokens run.",
    "opened": "Openings answered.",
    "prefix_tokens": "Tokens drawn for openings.",
    "verified": "Backlogs judged.",
    "drafts": "Backlogs with tokens to judge.",
    "draft_tokens": "Tokens that they asked to judge.",
    "accepted_tokens": "Of these, tokens that stood.",
    "corrected": "Corrections.",
    "taught": "Positions whose law a device was told, to learn from.",
    "law_bytes": "Bytes of these laws.",
    "repeated": "Repeats of requests.",
    "looked": "Pictures that were run for their spot checks alone.",
    "late": "Requests whose deadline passed before their turn.",
    "full": "Answers Busy.",
    "evicted": "Sessions that gave way.",
    "failed": "Requests whose forward failed.",
}
_DISTRIBUTIONS = {
    "forward_seconds": "Length of a forward.",
    "batch_spans": "Sessions in a forward.",
    "batch_tokens": "Tokens in a forward.",
    "queue_seconds": "Time that an answered request waited for its forwards.",
    "open_seconds": "From an opening's arrival to its answer.",
    "verify_seconds": "From a backlog's arrival to its verdict.",
}


def _by_label(counters: Counters) -> Iterator[Metric]:
    stood = CounterMetricFamily(
        _PREFIX + "accepted_tokens_per_position",
        "Tokens that stood, by their place among those a backlog asked to judge.",
        labels=["position"],
    )
    for position, count in sorted(counters.accepted_at.items()):
        stood.add_metric([str(position)], count)
    denied = CounterMetricFamily(_PREFIX + "denied", "Answers Refused.", labels=["reason"])
    for reason, count in sorted(counters.denied.items()):
        denied.add_metric([reason], count)
    return iter((stood, denied))


def _histogram(name: str, text: str, found: Distribution) -> Metric:
    buckets = [(_label(edge), float(count)) for edge, count in found.cumulative()]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=found.total)


def _label(edge: float) -> str:
    return f"{edge:g}" if math.isfinite(edge) else "+Inf"
