"""The connector's counters as vLLM shows them: in its log, and at its own /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from inference_worker.connectors.vllm.metric_names import FAMILIES, family_of


class StrataStats(KVConnectorStats):
    """What was counted in an interval: name → increase. Sums over ranks, sides and intervals."""

    @classmethod
    def between(cls, before: Mapping[str, float], now: Mapping[str, float]) -> StrataStats:
        """The increase of every counter between two looks; what is no counter is left out."""
        data = {
            name: value - before.get(name, 0.0) for name, value in now.items() if family_of(name) is not None
        }
        return cls(data={name: value for name, value in data.items() if value > 0.0})

    def reset(self) -> None:
        """Forget what was counted."""
        self.data: dict[str, float] = {}

    def aggregate(self, other: KVConnectorStats) -> StrataStats:
        """Both together."""
        names = {**self.data, **other.data}
        return StrataStats(
            data={name: self.data.get(name, 0.0) + other.data.get(name, 0.0) for name in names}
        )

    def reduce(self) -> dict[str, int | float]:
        """What the engine's log shows of an interval."""
        return {name: round(value, 6) for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data


class StrataPromMetrics(KVConnectorPromMetrics):
    """One Prometheus counter a family, with the engine's labels and, where a family has one, its own."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters: dict[str, Counter] = {
            family.name: self._counter_cls(
                name=family.name,
                documentation=family.help,
                labelnames=[*labelnames, *([family.label] if family.label else [])],
            )
            for family in FAMILIES
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add an interval's increases."""
        values = self.per_engine_labelvalues[engine_idx]
        for name, increase in transfer_stats_data.items():
            found = family_of(name)
            if found is not None:
                family, label = found
                self._counters[family.name].labels(*values, *([label] if family.label else [])).inc(increase)
