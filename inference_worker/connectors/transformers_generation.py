"""Which ways of generating leave a cache whose columns can be told: what to reuse and store around them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers.generation.configuration_utils import GenerationMode

_HELPERS = frozenset(
    {
        "logits_processor",
        "stopping_criteria",
        "prefix_allowed_tokens_fn",
        "synced_gpus",
        "streamer",
        "tokenizer",
    }
)
"""Arguments of `generate` that are no settings and change neither the cache nor the inputs."""

_PLAIN = frozenset({GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE})
_BEAMS = frozenset({GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE})


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """`off`: why nothing may be reused, or empty. `expand`: cache rows a prompt row.

    `decoded`: whether the cache rows hold the sequences' own tokens at the end. Beam search reorders the
    cache, and only the prompt's columns, equal in all beams of a row, can still be told. `stop_ids` end a row,
    which `generate` then fills with `fill_id` until the others have ended.
    """

    off: str
    expand: int = 1
    decoded: bool = True
    stop_ids: frozenset[int] = frozenset()
    fill_id: int | None = None


def plan_generation(model: Any, settings: Mapping[str, Any]) -> GenerationPlan:
    """Resolve `generate`'s arguments as it does: the model's defaults, a given config, single settings."""
    config = copy.deepcopy(model.generation_config)
    single = dict(settings)
    given = single.pop("generation_config", None)
    if given is not None:
        config.update(**given.to_diff_dict())
    unknown = sorted(set(config.update(**single)) - _HELPERS)
    if unknown:
        return GenerationPlan(
            f"generate was given {', '.join(unknown)}, which may change what the cache holds"
        )
    mode = config.get_generation_mode(None)
    problem = _problem(config, mode)
    if problem:
        return GenerationPlan(problem)
    expand = max(config.num_beams or 1, config.num_return_sequences or 1)
    stops = _stop_ids(config)
    return GenerationPlan("", expand, mode in _PLAIN, frozenset(stops), _fill_id(config, stops))


def _problem(config: Any, mode: GenerationMode) -> str:
    if mode not in _PLAIN | _BEAMS:
        return f"generation mode {mode.value!r} edits the cache in ways that are not followed"
    if config.use_cache is False:
        return "use_cache=False keeps no KV"
    if config.cache_implementation not in {None, "dynamic"}:
        return f"cache_implementation={config.cache_implementation!r} is not the dynamic cache"
    for name in ("output_attentions", "output_hidden_states", "prefill_chunk_size", "token_healing"):
        if getattr(config, name, None):
            return f"{name} asks for what a reused prefix does not have"
    if (config.guidance_scale or 1.0) != 1.0:
        return "guidance_scale runs a second, unconditional pass with a cache of its own"
    return ""


def _stop_ids(config: Any) -> list[int]:
    ids = config.eos_token_id
    if ids is None:
        return []
    return list(ids) if isinstance(ids, list | tuple) else [int(ids)]


def _fill_id(config: Any, stops: list[int]) -> int | None:
    pad = config.pad_token_id
    return int(pad) if pad is not None else next(iter(stops), None)
