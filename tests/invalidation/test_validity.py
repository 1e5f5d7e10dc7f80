"""Validity in single cases: what a stamp is worth, what a judgement costs, what people are told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from invalidation.log import Boot
from invalidation.records import NO_DIGEST, LogEntry, LogRecord
from invalidation.validity import Validity
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import LogIncarnation, PageKey, Stamp
from kv_types.limits import LOG_WEIGHTS_MAX, NAMESPACES_MAX, ORIGINS_REMEMBERED_MAX
from kv_types.namespace import Namespace, Weights
from kv_types.outcomes import RefuseReason
from kv_types.selectors import EVERYTHING, Origin, Selector
from tests.kv_types.selector_samples import SPACES, space
from tests.support.turns import finish

FIRST, SECOND = LogIncarnation(b"1" * 16), LogIncarnation(b"2" * 16)
HERE = SPACES[0]
CHAIN = tuple(PageKey(bytes([number]) * 32) for number in range(4))
OURS = Origin(producer=b"p", tags=(b"x",), from_ms=100, until_ms=200, revision=0)
NONE, INVALIDATED, FOREIGN = RefuseReason.NONE, RefuseReason.INVALIDATED, RefuseReason.STAMP_FOREIGN


def _started(revision: int = 0, incarnation: LogIncarnation = FIRST) -> Validity:
    validity = Validity(skew_ms=0)
    boot = Boot(
        tip=Stamp(incarnation, revision), digest=NO_DIGEST, floors={}, tombstones={}, weights={},
        settled=True, replicas=0,
    )  # fmt: skip
    finish(validity.restarting(boot))
    return validity


def _apply(validity: Validity, *events: Selected | WeightsAnnounced | Selector) -> None:
    for event in events:
        assert validity.position is not None
        told = Selected(event) if isinstance(event, Selector) else event
        validity.apply(LogRecord(validity.position.revision + 1, LogEntry(event=told), b"d" * 20))


def _judge(
    validity: Validity,
    revision: int,
    *,
    chain: Sequence[PageKey] = CHAIN,
    namespace: Namespace = HERE,
    origin: Origin = OURS,
    incarnation: LogIncarnation = FIRST,
) -> RefuseReason:
    return validity.judge(namespace, Stamp(incarnation, revision), origin, lambda: chain)


def test_before_the_log_is_read_every_stamp_is_foreign() -> None:
    validity = Validity(skew_ms=0)
    assert validity.position is None
    assert _judge(validity, 0) is FOREIGN
    with pytest.raises(ValueError, match="does not follow None"):
        validity.apply(LogRecord(1, LogEntry(event=Selected(EVERYTHING))))


def test_stamps_ahead_or_of_another_incarnation_are_foreign() -> None:
    validity = _started(5)
    assert _judge(validity, 5) is NONE
    assert _judge(validity, 6) is FOREIGN
    assert _judge(validity, 5, incarnation=SECOND) is FOREIGN
    assert _judge(validity, 0, incarnation=SECOND) is FOREIGN


@pytest.mark.parametrize("revision", [5, 7, 0])
def test_a_gap_never_goes_unnoticed(revision: int) -> None:
    validity = _started(5)
    with pytest.raises(ValueError, match="does not follow"):
        validity.apply(LogRecord(revision, LogEntry(event=Selected(EVERYTHING))))
    assert validity.position == Stamp(FIRST, 5)
    assert _judge(validity, 0) is NONE


def test_c16_what_was_begun_before_the_record_is_refused_and_what_begins_after_is_not() -> None:
    validity = _started(3)
    _apply(validity, Selector(model=HERE.model, weights_version="1"))
    assert _judge(validity, 3) is INVALIDATED
    assert _judge(validity, 4) is NONE
    assert _judge(validity, 3, namespace=SPACES[1]) is NONE, "other weights"


def test_a_key_selects_what_stands_on_it_and_nothing_else() -> None:
    validity = _started()
    _apply(validity, Selector(key=CHAIN[2]))
    assert _judge(validity, 0, chain=CHAIN[:2]) is NONE
    assert _judge(validity, 0, chain=CHAIN[:3]) is INVALIDATED
    assert _judge(validity, 0, chain=CHAIN) is INVALIDATED
    assert _judge(validity, 0, chain=(*CHAIN[:2], PageKey(b"f" * 32))) is NONE, "a fork before it"


def test_c40_one_producers_pages_of_one_time_go_and_all_else_stays() -> None:
    validity = _started()
    _apply(validity, Selector(producer=b"p", since_ms=150, until_ms=400))
    for origin, expected in (
        (OURS, INVALIDATED),
        (Origin(producer=b"q", tags=(), from_ms=100, until_ms=200, revision=0), NONE),
        (Origin(producer=b"p", tags=(), from_ms=100, until_ms=149, revision=0), NONE),
        (Origin(producer=b"p", tags=(), from_ms=401, until_ms=500, revision=0), NONE),
        (Origin(producer=None, tags=(), from_ms=100, until_ms=200, revision=0), INVALIDATED),
        (
            Origin(producer=b"q", tags=(), from_ms=1, until_ms=2, revision=0, lineage_known=False),
            INVALIDATED,
        ),
    ):
        assert _judge(validity, 0, origin=origin) is expected, origin


def test_the_same_can_be_stored_again_finish_after_each_record() -> None:
    """I9: whatever was invalidated, a stamp of the newest view is as good as ever."""
    validity = _started()
    for selector in (EVERYTHING, Selector(key=CHAIN[0]), Selector(tag=b"x"), Selector(namespace=HERE.id)):
        _apply(validity, selector)
        assert validity.position is not None
        assert _judge(validity, validity.position.revision) is NONE
        assert _judge(validity, validity.position.revision - 1) is INVALIDATED


@pytest.mark.parametrize(
    "selectors",
    [
        [Selector(model="m"), Selector(tenant="")],
        [Selector(model="m"), Selector(model="other")],
        [Selector(tag=b"x"), Selector(producer=b"p")],
        [Selector(tag=b"x", key=CHAIN[1]), Selector(tag=b"other")],
        [Selector(key=CHAIN[1]), Selector(key=CHAIN[2], model="m")],
        [Selector(namespace=HERE.id), Selector(namespace=SPACES[1].id)],
    ],
    ids=lambda selectors: selectors[0].describe(),
)
def test_a_judgement_between_any_two_records_changes_nothing(selectors: list[Selector]) -> None:
    """What is remembered of a namespace or an origin is no older than the record that comes next."""
    validity, level = _started(), 0
    for revision in range(1, 9):
        selector = selectors[revision // 2 % 2]
        _apply(validity, selector)
        selects = selector.matches_namespace(HERE) and selector.tag != b"other"
        level = revision if selects else level
        found = [_judge(validity, stamp) for stamp in range(revision + 1)]
        assert found == [INVALIDATED] * level + [NONE] * (revision + 1 - level)


def test_the_chain_is_asked_for_only_where_it_decides() -> None:
    validity = _started()
    _apply(validity, Selector(key=CHAIN[3]), Selector(model="other"), WeightsAnnounced("m", "2"))

    def never() -> Sequence[PageKey]:
        raise AssertionError("the chain was asked for")

    for revision in (1, 2, 3):
        assert validity.judge(HERE, Stamp(FIRST, revision), OURS, never) is NONE
    _apply(validity, Selector(namespace=HERE.id))
    assert validity.judge(HERE, Stamp(FIRST, 0), OURS, never) is INVALIDATED, "its namespace decides before"


def test_a_chain_too_long_to_be_looked_at_is_refused_where_it_could_matter() -> None:
    for selector in (Selector(key=CHAIN[0]), Selector(key=CHAIN[0], producer=b"p")):
        validity = _started()
        _apply(validity, selector)
        assert validity.judge(HERE, Stamp(FIRST, 0), OURS, lambda: None) is INVALIDATED
        assert validity.judge(HERE, Stamp(FIRST, 1), OURS, lambda: None) is NONE
    validity = _started()
    _apply(validity, Selector(key=CHAIN[0], producer=b"q"))
    assert validity.judge(HERE, Stamp(FIRST, 0), OURS, lambda: None) is NONE, "whatever it holds, another's"


def test_a_new_start_forgets_what_was() -> None:
    validity = _started()
    _apply(validity, EVERYTHING, Selector(key=CHAIN[0]), Selector(tag=b"x"), Selector(model="m"))
    _apply(validity, WeightsAnnounced("m", "9"))
    assert validity.weights == {"m": "9"}
    assert _judge(validity, 0) is INVALIDATED
    boot = Boot(
        tip=Stamp(SECOND, 7), digest=b"e" * 20, floors={None: 2, HERE.id: 4},
        tombstones={Selector(key=CHAIN[0]): 6, Selector(tenant=""): 5}, weights={"n": "1"},
        settled=False, replicas=0,
    )  # fmt: skip
    finish(validity.restarting(boot))
    assert (validity.position, validity.digest) == (Stamp(SECOND, 7), b"e" * 20)
    assert validity.weights == {"m": "9", "n": "1"}
    assert _judge(validity, 4) is FOREIGN
    elsewhere = SPACES[1]
    for namespace, chain, level in (
        (elsewhere, CHAIN[1:], 2),
        (elsewhere, CHAIN, 6),
        (HERE, CHAIN[1:], 5),
        (HERE, CHAIN, 6),
    ):
        for revision in range(8):
            found = _judge(validity, revision, namespace=namespace, chain=chain, incarnation=SECOND)
            assert found is (INVALIDATED if revision < level else NONE), (namespace.model, revision)


def _boot(incarnation: LogIncarnation, **weights: str) -> Boot:
    return Boot(
        tip=Stamp(incarnation, 0), digest=NO_DIGEST, floors={}, tombstones={}, weights=weights, settled=False, replicas=0,
    )  # fmt: skip


def test_what_was_announced_outlives_the_log_that_told_it() -> None:
    """Losing the log does not load the old weights again."""
    validity = _started()
    _apply(validity, WeightsAnnounced("m", "9"), WeightsAnnounced("n", "1"))
    finish(validity.restarting(_boot(SECOND)))
    assert validity.weights == {"m": "9", "n": "1"}
    finish(validity.restarting(_boot(FIRST, n="2")))
    assert validity.weights == {"m": "9", "n": "2"}, "what a log says goes before what another one said"
    _apply(validity, WeightsAnnounced("m", "10"))
    assert validity.weights == {"m": "10", "n": "2"}
    _apply(validity, EVERYTHING)
    assert validity.weights == {"m": "10", "n": "2"}


def test_what_outlives_a_log_makes_room_for_what_the_next_one_says() -> None:
    validity = _started()
    _apply(validity, *(WeightsAnnounced(f"m{number}", "1") for number in range(LOG_WEIGHTS_MAX)))
    told = {f"n{number}": "1" for number in range(LOG_WEIGHTS_MAX - 1)}
    finish(validity.restarting(_boot(SECOND, **told)))
    assert len(validity.weights) == LOG_WEIGHTS_MAX
    assert told.items() <= validity.weights.items()


def test_what_a_follower_missed_is_named_once() -> None:
    validity = _started()
    key, other = Selector(namespace=HERE.id, key=CHAIN[0]), Selector(key=CHAIN[1])
    _apply(validity, key, other, Selector(tag=b"x"), Selector(namespace=HERE.id), other)
    assert validity.newer(5) == []
    assert validity.newer(4) == [(other, 5)]
    assert validity.newer(0) == [(Selector(tag=b"x"), 3), (Selector(namespace=HERE.id), 4), (other, 5)]
    _apply(validity, EVERYTHING, key)
    assert validity.newer(0) == [(EVERYTHING, 6)], "of what is held, nothing is left for the key to select"
    assert validity.newer(6) == [(key, 7)]


def test_what_it_keeps_is_bounded() -> None:
    validity = _started()
    _apply(validity, *(WeightsAnnounced(f"m{number}", "1") for number in range(LOG_WEIGHTS_MAX + 3)))
    assert len(validity.weights) == LOG_WEIGHTS_MAX
    assert "m2" not in validity.weights
    _apply(validity, Selector(tag=b"y"), Selector(tenant="nobody"))
    spaces = [space("m", Weights(version=str(number))) for number in range(NAMESPACES_MAX + 5)]
    for namespace in spaces:
        assert _judge(validity, 0, namespace=namespace) is NONE
    sizes = validity.statistics()
    assert sizes["namespaces_remembered"] == NAMESPACES_MAX
    assert sizes["origins_remembered"] <= ORIGINS_REMEMBERED_MAX
    assert (sizes["tombstones"], sizes["floors"]) == (2, 0)


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (EVERYTHING, "its stamp 0 is below the floor of everything, 1"),
        (Selector(namespace=HERE.id), "its stamp 0 is below its namespace's floor, 1"),
        (Selector(model="m"), "its stamp 0 is below record 1, which selects its namespace by what it is"),
        (Selector(key=CHAIN[1]), "its stamp 0 is below record 1, which selects a page of its chain"),
        (Selector(tag=b"x"), "its stamp 0 is below record 1, which selects it by its origin"),
        (Selector(tag=b"other"), "valid: no record after 0 selects it"),
    ],
    ids=lambda value: value.describe() if isinstance(value, Selector) else "",
)
def test_people_are_told_which_record_it_was(selector: Selector, said: str) -> None:
    validity = _started()
    assert validity.explain(HERE, Stamp(FIRST, 0), OURS, lambda: CHAIN).startswith("valid")
    _apply(validity, selector)
    assert validity.explain(HERE, Stamp(FIRST, 0), OURS, lambda: CHAIN) == said


def test_people_are_told_of_stamps_from_elsewhere() -> None:
    def explain(validity: Validity, stamp: Stamp) -> str:
        return validity.explain(HERE, stamp, OURS, lambda: CHAIN)

    assert explain(Validity(skew_ms=0), Stamp(FIRST, 0)) == "the log has not been read yet"
    assert explain(_started(3), Stamp(FIRST, 4)) == "its stamp 4 lies ahead of this sidecar's position 3"
    told = explain(_started(3), Stamp(SECOND, 0))
    assert SECOND.hex() in told
    assert FIRST.hex() in told
