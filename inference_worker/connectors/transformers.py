"""The Transformers connector: prefill and generate that skip what was computed elsewhere or before."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from cache_l1.policies import POLICY_DEFAULT as L1_POLICY_DEFAULT
from cache_l1.policies import check_policy
from cache_l1.transfer_registration import RegisteredMemory
from inference_worker.connectors.transformers_cache import CachedRow, PageCodec
from inference_worker.connectors.transformers_fetch import reach
from inference_worker.connectors.transformers_generation import GenerationPlan, plan_generation
from inference_worker.connectors.transformers_identity import (
    Declared,
    UnsupportedModelError,
    active_adapters,
    base_model,
    identify_model,
    numerics,
)
from inference_worker.connectors.transformers_promotion import l1_promotion_named
from inference_worker.connectors.transformers_report import ReuseReport
from inference_worker.connectors.transformers_reuse import FoundRow, PageReuse, ReuseCall, TokenIds
from inference_worker.connectors.transformers_rows import PackedRows, pack_rows
from inference_worker.connectors.transformers_store import PageClient
from inference_worker.connectors.transformers_timing import PassTimer
from inference_worker.connectors.transformers_weights import content_mark, forget_digest
from inference_worker.weights import FollowedVersion
from kv_policy.admission import L1Promotion
from kv_types.computation import StoredAs, stored_as_named
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.limits import CALL_DEADLINE_S_DEFAULT, CALL_S_MAX, WEIGHTS_SWITCHES_MAX
from kv_types.namespace import Adapter, Namespace, Uncacheable, UncacheableReason, Weights
from kv_types.numbers import check_seconds, check_word

__all__ = ["Generated", "Prefill", "TransformersConnector", "UnsupportedModelError"]

PAGE_TOKENS_DEFAULT = 64
L1_BYTES_DEFAULT = 256 * 1024 * 1024

_log = logging.getLogger("stratakv.transformers")


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """A prefilled batch of B rows, packed to the left in `rows` (the caller's batch itself when it was so
    already).

    `logits` [B, vocabulary]: for the token after each row. `past_key_values`: a cache of all columns that
    belongs to the caller; decoding goes on with `rows.attention_mask` and positions counted over real
    tokens. `column_logits` [B, S, vocabulary] and `computed` (bool [B, S]) stand in the caller's columns
    where all logits were asked for: reused columns and pads have none and are False.
    """

    logits: torch.Tensor
    past_key_values: Any
    rows: PackedRows
    report: ReuseReport
    column_logits: torch.Tensor | None = None
    computed: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """`sequences` [B · n, S + new]: the caller's columns, then the new tokens. `output`: what `generate`
    returned.
    """

    sequences: torch.Tensor
    output: Any
    report: ReuseReport


class TransformersConnector:
    """Reuse around one causal language model. Raises nothing because a cache is absent, slow or wrong.

    weights: an explicit version, or None for a digest of all parameters and buffers, taken again whenever
    they are seen to change. model_name: None takes the architecture's. adapter: name and content digest of
    the one active adapter. stored_as: pages may come back from L3 as this lossy codec leaves them ("fp8_e4m3", "int8");
    None: bit for bit. l1_bytes: at most so much for pages inside this process. l1_policy: what goes when there is no room
    ("learned", "lru"). l1_promotion: which pages that L2 gave are kept there once it is full: "always" all, or from their
    "second_use" on; None: the latter where the model is on a processor. look_up_deadline_s,
    store_deadline_s: the most that one call waits for pages to come and to go. follow_weights: take each
    version that is announced for this model as the name of its weights from then on; needs weights that are
    named by a version, and is right where they are changed before that is announced. require_cacheable: raise
    UnsupportedModelError where the model cannot be named; otherwise it is served without reuse, and
    `uncacheable` says why. Raises LimitExceededError when a page of `page_tokens` tokens would be too
    large, InvalidArgumentError.
    """

    def __init__(
        self,
        model: Any,
        client: PageClient,
        *,
        weights: Weights | None = None,
        model_name: str | None = None,
        adapter: Adapter | None = None,
        tenant: str = "",
        stored_as: StoredAs | str | None = None,
        page_tokens: int = PAGE_TOKENS_DEFAULT,
        l1_bytes: int = L1_BYTES_DEFAULT,
        l1_policy: str = L1_POLICY_DEFAULT,
        l1_promotion: L1Promotion | str | None = None,
        look_up_deadline_s: float = CALL_DEADLINE_S_DEFAULT,
        store_deadline_s: float = CALL_DEADLINE_S_DEFAULT,
        follow_weights: bool = False,
        require_cacheable: bool = False,
    ) -> None:
        self.model = model
        self._client = client
        self._declared = Declared(
            model_name=model_name,
            weights=weights,
            adapter=adapter,
            page_tokens=page_tokens,
            tenant=tenant,
            stored_as=stored_as_named(stored_as),
        )
        check_word(l1_bytes, "l1_bytes")
        check_seconds(look_up_deadline_s, "look_up_deadline_s", most=CALL_S_MAX, may_be_0=True)
        check_seconds(store_deadline_s, "store_deadline_s", most=CALL_S_MAX, may_be_0=True)
        check_policy(l1_policy)
        self._l1_bytes, self._l1_policy = l1_bytes, l1_policy
        self._l1_promotion = l1_promotion_named(l1_promotion, device=model.device.type)
        self._look_up_deadline_s = look_up_deadline_s
        self._store_deadline_s = store_deadline_s
        parameters = inspect.signature(base_model(model).forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._one_logit = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._accepts_positions = "position_ids" in parameters
        self.uncacheable: Uncacheable | None = None
        self.namespace: Namespace | None = None
        self._reuse: PageReuse | None = None
        self._reached: RegisteredMemory | None = None
        self._mark: object = None
        self._naming = threading.Lock()
        version = None if weights is None else weights.version
        self._followed = FollowedVersion(version) if follow_weights else None
        self._name_model()
        # What is announced by now is older than these weights, or says that others belong here.
        self._look_at_announcements(deadline_s=look_up_deadline_s)
        if require_cacheable and self.uncacheable is not None:
            raise UnsupportedModelError(self.uncacheable)

    def refresh(self) -> None:
        """Name the model again: needed after edits of weights that PyTorch does not count (through
        `tensor.data`).
        """
        with self._naming:
            forget_digest(self.model)
            self._name_model()

    def set_weights_version(self, version: str) -> None:
        """Name the weights anew, after they were changed in this process.

        From the next call on pages are looked up and stored under this version; a call under way stores nothing. Raises
        InvalidArgumentError when the weights are named by their digest, or for what can't be a version.
        """
        weights = Weights(version=version)
        with self._naming:
            if self._declared.weights is None or self._declared.weights.version is None:
                raise InvalidArgumentError(
                    "these weights are named by their content, which is looked at again at each call: give "
                    "weights=Weights(version=…) to name them by a version"
                )
            self._look_at_announcements(deadline_s=None)
            if self._followed is not None:
                self._followed.declare(version)
            self._use_weights(weights)

    def _look_at_announcements(self, *, deadline_s: float | None) -> None:
        if self._followed is not None and self.namespace is not None:
            self._followed.observe(self._client.announced(self.namespace.model, deadline_s=deadline_s))

    def _use_weights(self, weights: Weights) -> bool:
        """Name the model by these weights, if it is not; returns whether its name has changed."""
        if self._declared.weights == weights:
            return False
        self._declared = replace(self._declared, weights=weights)
        self._rename_model()
        return True

    def _rename_model(self) -> None:
        """Name the model anew while it serves: what is wrong with its name costs reuse, and nothing else."""
        try:
            self._name_model()
        except LimitExceededError as error:
            self._turn_off(Uncacheable(UncacheableReason.INVALID, str(error)))
            self._mark = None  # there may be room at the next call

    def _name_model(self) -> None:
        self._mark = self._model_mark()
        named = identify_model(self.model, self._declared)
        if isinstance(named, Uncacheable):
            self._turn_off(named)
            return
        if self.namespace == named and self.uncacheable is None:
            return
        device = self.model.device
        codec = PageCodec(named, device=device)
        self._reached = self._reached or reach(self._client, device)
        reuse = PageReuse(
            self._client, named, codec=codec, device=device, l1_bytes=self._l1_bytes, l1_policy=self._l1_policy,
            l1_promotion=self._l1_promotion, reached=self._reached,
        )  # fmt: skip
        if self._reuse is not None:
            self._reuse.retire()
        self._reuse, self.namespace, self.uncacheable = reuse, named, None

    def prefill(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, all_logits: bool = False
    ) -> Prefill:
        """Run the prompt through the model, computing only what is found nowhere, and store its full pages.

        `input_ids` and `attention_mask`: integers [B, S], pads anywhere. Raises InvalidArgumentError.
        """
        rows = self._pack(input_ids, attention_mask)
        call, report = self._begin(rows)
        with torch.no_grad():
            if call is None:
                timer = self._timer(rows, first=0)
                return self._forward(rows, self._empty_cache(), report, timer, first=0, all_logits=all_logits)
            with call:
                found = self._look_up(call, rows)
                cache, first = self._assemble(call, rows, found)
                timer = self._timer(rows, first=first)
                done = self._forward(rows, cache, report, timer, first=first, all_logits=all_logits)
                self._store(call, cache, _chains(rows, found))
                timer.tell(call)
                return done

    def generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **settings: Any
    ) -> Generated:
        """Run `model.generate` behind whatever prefix is found; prompt and decoded pages are stored
        afterwards.

        `settings` are those of `generate`. Modes that edit the cache run without reuse, and the report says
        why. Raises InvalidArgumentError, and whatever `generate` raises for its settings.
        """
        rows = self._pack(input_ids, attention_mask)
        for name in ("past_key_values", "cache", "position_ids"):
            if name in settings:
                raise InvalidArgumentError(f"generate makes {name} itself; leave it out")
        plan = plan_generation(self.model, settings)
        call, report = self._begin(rows, off=plan.off)
        with torch.no_grad():
            if call is None:
                return self._generate(rows, input_ids, {}, settings, report)
            with call:
                found = self._look_up(call, rows)
                cache, first = self._assemble(call, rows, found)
                if plan.expand > 1 and cache.get_seq_length() > 0:
                    cache.batch_repeat_interleave(plan.expand)
                timer = self._timer(rows, first=first, expand=plan.expand)
                with timer.first_pass(base_model(self.model)):
                    done = self._generate(rows, input_ids, {self._cache_argument: cache}, settings, report)
                self._store(call, cache, _generated_chains(rows, found, done, plan, cache.get_seq_length()))
                timer.tell(call)
                return done

    # before the pass

    def _pack(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> PackedRows:
        pad_id = getattr(self.model.config.get_text_config(decoder=True), "pad_token_id", None)
        return pack_rows(input_ids, attention_mask, device=self.model.device, pad_id=pad_id or 0)

    def _begin(self, rows: PackedRows, *, off: str = "") -> tuple[ReuseCall | None, ReuseReport]:
        """Begin to reuse, under the weights that are announced once the view is loaded (rules R1, R5); or say why not."""
        for _ in range(WEIGHTS_SWITCHES_MAX):
            reuse, mark, report = self._start(rows, off=off)
            if reuse is None:
                return None, report
            try:
                call = reuse.begin(report, mark=mark)
            except LimitExceededError as error:  # the sidecar knows too many namespaces already
                report.off = str(error)
                return None, report
            try:
                is_named, report.off = self._is_named(call, reuse.namespace)
            except BaseException:
                call.end()
                raise
            if is_named and not report.off:
                return call, report
            call.end()
            if report.off:
                return None, report
        report.off = "weights are announced faster than a call can begin"
        return None, report

    def _is_named(self, call: ReuseCall, namespace: Namespace) -> tuple[bool, str]:
        """Whether a call that has begun goes by the right version of the weights, and why nothing may be reused."""
        if self._followed is None:
            return True, ""
        with self._naming:
            call.announced = self._client.announced(namespace.model)
            problem = self._followed.observe(call.announced)
            return not self._use_weights(Weights(version=self._followed.version)), problem

    def _start(self, rows: PackedRows, *, off: str = "") -> tuple[PageReuse | None, object, ReuseReport]:
        """Decide whether this call reuses anything; the mark is that of the model its pages are named by."""
        with self._naming:
            if self._model_mark() != self._mark:
                self._rename_model()
            reuse, mark, uncacheable = self._reuse, self._mark, self.uncacheable
        off = off or self._unsteady()
        if uncacheable is not None:
            off = f"{uncacheable.reason}: {uncacheable.detail}"
        report = ReuseReport.of([len(row) for row in rows.rows], off=off, uncacheable=uncacheable)
        return (None if off else reuse), mark, report

    def _unsteady(self) -> str:
        """Say why KV of this very call has other bytes than the model's name promises, or nothing."""
        if any(module.training for module in self.model.modules()):
            return "the model is in training mode, where dropout shapes the KV: call model.eval()"
        if torch.is_autocast_enabled(self.model.device.type):
            return "autocast is on, so the KV is computed in another type than the model's"
        return ""

    def _look_up(self, call: ReuseCall, rows: PackedRows) -> list[FoundRow]:
        return call.look_up([row.token_ids for row in rows.rows], deadline_s=self._look_up_deadline_s)

    def _assemble(
        self, call: ReuseCall, rows: PackedRows, found: Sequence[FoundRow]
    ) -> tuple[DynamicCache, int]:
        """Build the cache of the first columns that every row has, pads counted; also return their number."""
        page_tokens = call.codec.page_tokens
        usable = [
            min(row.found * page_tokens, len(real) - 1) for row, real in zip(found, rows.rows, strict=True)
        ]
        pads = rows.pads
        columns = min(pad + tokens for pad, tokens in zip(pads, usable, strict=True))
        if all(tokens == 0 for tokens in usable):
            columns = 0  # pads alone are no prefix worth a cache
        cached = []
        for index, (pad, row) in enumerate(zip(pads, found, strict=True)):
            reused = max(columns - pad, 0)
            call.report.rows[index].reused = reused
            cached.append(CachedRow(min(pad, columns), reused, row.pages))
            call.note_used(row, reused)
        return call.codec.assemble(cached, columns=columns, config=self._text_config), columns

    # the pass

    def _timer(self, rows: PackedRows, *, first: int, expand: int = 1) -> PassTimer:
        return PassTimer(self.model.device, tokens=expand * rows.input_ids[:, first:].numel(), start=first)

    def _forward(
        self,
        rows: PackedRows,
        cache: Any,
        report: ReuseReport,
        timer: PassTimer,
        *,
        first: int,
        all_logits: bool,
    ) -> Prefill:
        arguments: dict[str, Any] = {self._cache_argument: cache}
        if rows.padded:
            arguments["attention_mask"] = rows.attention_mask
        if self._accepts_positions:
            arguments["position_ids"] = rows.position_ids[:, first:]
        if not all_logits:
            arguments |= self._one_logit
        with timer.running():
            output = self.model(input_ids=rows.input_ids[:, first:], use_cache=True, **arguments)
        last = output.logits[:, -1]
        if not all_logits:
            return Prefill(last, cache, rows, report)
        values, computed = rows.to_columns(output.logits, first)
        return Prefill(last, cache, rows, report, values, computed)

    def _generate(
        self,
        rows: PackedRows,
        input_ids: torch.Tensor,
        cache: Mapping[str, Any],
        settings: Mapping[str, Any],
        report: ReuseReport,
    ) -> Generated:
        output = self.model.generate(rows.input_ids, attention_mask=rows.attention_mask, **cache, **settings)
        packed = output if isinstance(output, torch.Tensor) else output.sequences
        given = input_ids.to(packed.device).repeat_interleave(packed.shape[0] // len(rows.rows), dim=0)
        return Generated(torch.cat((given, packed[:, rows.width :]), dim=1), output, report)

    # after the pass

    def _store(self, call: ReuseCall, cache: Any, chains: Sequence[_Chain]) -> None:
        problem = call.codec.mismatch(cache)
        if problem is not None:
            self._turn_off(Uncacheable(UncacheableReason.GEOMETRY_UNKNOWN, problem))
            call.report.off, call.report.uncacheable = problem, self.uncacheable
            return
        if self._model_mark() != call.mark:
            call.report.off = "the model changed during this call, so nothing of it was stored"
            return
        if call.announced is not None and self._client.announced(call.model) != call.announced:
            call.report.off = "weights were announced during this call, so nothing of it was stored"
            return
        until = time.monotonic() + self._store_deadline_s
        for chain in chains:
            call.store(
                cache,
                row=chain.row,
                column=chain.column,
                tokens=chain.tokens,
                found=chain.found,
                deadline_s=until - time.monotonic(),
            )

    # the model

    @property
    def _text_config(self) -> Any:
        return self.model.config.get_text_config(decoder=True)

    def _empty_cache(self) -> DynamicCache:
        return DynamicCache(config=self._text_config)

    def _model_mark(self) -> object:
        """Change whenever the model may have become another: adapters switched, weights edited, moved or
        recast, settings changed.
        """
        model = self.model
        modules = list(model.modules())
        content = content_mark(modules) if self._declared.weights is None else None
        causal = all(getattr(module, "is_causal", True) for module in modules)
        weights = self._declared.weights
        return content, weights, active_adapters(modules), model.device, numerics(model, modules), causal

    def _turn_off(self, uncacheable: Uncacheable) -> None:
        if self.uncacheable != uncacheable:
            _log.warning("serving without reuse (%s): %s", uncacheable.reason, uncacheable.detail)
        self.uncacheable = uncacheable
        reuse, self.namespace, self._reuse = self._reuse, None, None
        if reuse is not None:
            reuse.retire()

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges of L1, empty while the model is uncacheable."""
        return {} if self._reuse is None else self._reuse.statistics()


@dataclass(frozen=True, slots=True)
class _Chain:
    """Tokens whose KV stands in row `row` of a cache from column `column` on, and the pages found before."""

    row: int
    column: int
    tokens: TokenIds
    found: FoundRow


def _chains(rows: PackedRows, found: Sequence[FoundRow], *, stride: int = 1) -> list[_Chain]:
    """Prompt tokens alone; prompt row i is cache row i · stride."""
    return [
        _Chain(index * stride, pad, row.token_ids, found[index])
        for index, (pad, row) in enumerate(zip(rows.pads, rows.rows, strict=True))
    ]


def _generated_chains(
    rows: PackedRows, found: Sequence[FoundRow], done: Generated, plan: GenerationPlan, columns: int
) -> list[_Chain]:
    """Prompt tokens and those decoded tokens whose KV is among the cache's `columns`."""
    if not plan.decoded:
        # every beam of a row has the prompt's columns, so the first one stands for all
        return _chains(rows, found, stride=plan.expand)
    decoded = done.sequences[:, rows.width : columns].cpu().numpy()
    chains = []
    for chain in _chains(rows, found):
        for index in range(chain.row * plan.expand, (chain.row + 1) * plan.expand):
            tokens = np.concatenate((chain.tokens, _until_stop(decoded[index], plan)))
            chains.append(replace(chain, row=index, tokens=tokens))
    return chains


def _until_stop(decoded: NDArray[np.int64], plan: GenerationPlan) -> NDArray[np.uint32]:
    """Drop what `generate` appends to rows that ended before others did; their KV is right, but nobody asks
    for it. A row that a stop string or another criterion ended shows no stop token, only the filling.
    """
    stops = np.flatnonzero(np.isin(decoded, list(plan.stop_ids)))
    if len(stops):
        return decoded[: int(stops[0]) + 1].astype(np.uint32)
    own = np.flatnonzero(decoded != plan.fill_id) if plan.fill_id is not None else np.arange(len(decoded))
    return decoded[: int(own[-1]) + 1 if len(own) else 0].astype(np.uint32)
