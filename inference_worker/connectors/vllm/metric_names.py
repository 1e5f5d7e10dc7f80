"""Names of the connector's counters: which of its statistics is which Prometheus counter. No engine is needed to know them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Counters of one name. `prefix`: of the statistics that belong to it; what follows it is the value of `label`."""

    name: str
    help: str
    prefix: str
    label: str = ""


FAMILIES = (
    Family(
        "vllm:stratakv_hit_tokens",
        "Prompt tokens found outside the engine, by tier.",
        "external_tokens_",
        "tier",
    ),
    Family(
        "vllm:stratakv_missed_requests",
        "Look-ups that ended before the prompt did, by reason.",
        "ended_by_",
        "reason",
    ),
    Family(
        "vllm:stratakv_uncacheable_requests",
        "Requests whose pages have no name, by reason.",
        "uncacheable_requests_",
        "reason",
    ),
    Family(
        "vllm:stratakv_failed_loads",
        "Loads that were not in place; the engine computed them.",
        "failed_loads",
    ),
    Family(
        "vllm:stratakv_failed_load_jobs",
        "Loads that failed in a rank, by reason.",
        "load_jobs_failed_",
        "reason",
    ),
    Family(
        "vllm:stratakv_dropped_save_jobs",
        "Saves that were given up before they began, by reason.",
        "save_jobs_dropped_",
        "reason",
    ),
    Family(
        "vllm:stratakv_failed_load_tokens", "Tokens of loads that were not in place.", "failed_load_tokens"
    ),
    Family(
        "vllm:stratakv_saved_pages", "Pages offered for storing, by what became of them.", "saves_", "outcome"
    ),
    Family(
        "vllm:stratakv_refused_pages", "Pages that were not stored, by reason.", "refused_pages_", "reason"
    ),
    Family(
        "vllm:stratakv_loaded_bytes",
        "Bytes copied into the engine's blocks, all ranks together.",
        "loaded_bytes",
    ),
    Family(
        "vllm:stratakv_saved_bytes",
        "Bytes copied out of the engine's blocks, all ranks together.",
        "saved_bytes",
    ),
    Family("vllm:stratakv_hook_seconds", "Time inside the connector's hooks, by side.", "hook_s_", "side"),
    Family(
        "vllm:stratakv_events", "Invalidations applied to the engine's own prefix cache.", "events_applied"
    ),
    Family(
        "vllm:stratakv_evicted_blocks", "Blocks taken out of the engine's own prefix cache.", "evicted_blocks"
    ),
    Family(
        "vllm:stratakv_tainted_requests", "Running requests that an invalidation caught.", "tainted_requests"
    ),
    Family("vllm:stratakv_gated", "Look-ups of the engine in its own cache, by answer.", "gate_", "answer"),
    Family(
        "vllm:stratakv_given_up", "Times that the connector failed and switched itself off.", "fuse_blown"
    ),
)


def family_of(statistic: str) -> tuple[Family, str] | None:
    """The family that a statistic is counted in, and its label's value; None for what is no counter."""
    for family in FAMILIES:
        if family.label and statistic.startswith(family.prefix):
            return family, statistic.removeprefix(family.prefix)
        if statistic == family.prefix:
            return family, ""
    return None
