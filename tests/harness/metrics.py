"""What Prometheus sees of a server."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def scrape(metrics_url: str) -> str:
    """Return the text of /metrics. metrics_url: http://HOST:PORT."""
    text: str = urllib.request.urlopen(f"{metrics_url}/metrics").read().decode()
    return text


def samples(text: str) -> dict[tuple[str | tuple[str, str], ...], float]:
    """Return (name, (label, value), ...) -> value, the labels in the order of their names."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
