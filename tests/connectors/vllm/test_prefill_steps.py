"""Which steps of an engine tell how fast it computes prompts, and what they tell, with one step under way or several."""

from __future__ import annotations

import pytest

from inference_worker.connectors.vllm.prefill_steps import Part, PrefillSample, PrefillSteps

PROMPT = Part(1024, 0, 4096)
DECODED = Part(1, 5000, 4096)


class Engine:
    """Makes steps and ends them, at times that are given."""

    def __init__(self) -> None:
        self.steps = PrefillSteps()
        self.number = 0

    def step(self, *parts: Part, made_s: float, ended_s: float, loads: bool = False) -> list[PrefillSample]:
        number = self.make(*parts, made_s=made_s, loads=loads)
        return self.steps.ended(number, ended_s)

    def make(self, *parts: Part, made_s: float, loads: bool = False) -> int:
        self.number += 1
        self.steps.made(self.number, parts, loads=loads, now_s=made_s)
        return self.number


@pytest.fixture
def engine() -> Engine:
    """One that has computed prompts before, until 100."""
    warm = Engine()
    told = [warm.step(PROMPT, made_s=float(at), ended_s=at + 0.5) for at in range(3)]
    assert told == [[], [], []]
    told.append(warm.step(PROMPT, made_s=99.0, ended_s=100.0))
    assert [one.seconds for one in told[-1]] == [0.5, 0.5, 1.0]
    return warm


def test_nothing_is_told_of_the_first_step_and_before_there_are_enough() -> None:
    engine = Engine()
    assert not engine.step(PROMPT, made_s=0.0, ended_s=90.0)
    assert not engine.step(PROMPT, made_s=100.0, ended_s=101.0)
    assert not engine.step(PROMPT, made_s=101.0, ended_s=102.0)
    assert engine.step(PROMPT, made_s=102.0, ended_s=104.0) == [
        PrefillSample(1024, 0, 1.0),
        PrefillSample(1024, 0, 1.0),
        PrefillSample(1024, 0, 2.0),
    ]


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (DECODED,) * 300,
        (Part(255, 0, 4096),),
        (PROMPT, *(DECODED,) * 200),
    ],
    ids=["nothing", "decoded", "a_short_prompt", "too_much_is_decoded"],
)
def test_steps_that_compute_little_of_prompts_tell_nothing(engine: Engine, parts: tuple[Part, ...]) -> None:
    assert engine.step(*parts, made_s=100.0, ended_s=101.0) == []
    assert engine.step(PROMPT, made_s=101.0, ended_s=102.0) == [PrefillSample(1024, 0, 1.0)]


def test_a_step_that_loads_tells_nothing(engine: Engine) -> None:
    assert engine.step(PROMPT, made_s=100.0, ended_s=101.0, loads=True) == []


def test_some_decoded_tokens_beside_a_prompt_do_not_matter(engine: Engine) -> None:
    assert engine.step(PROMPT, *(DECODED,) * 100, made_s=100.0, ended_s=101.0) == [
        PrefillSample(1024, 0, 1.0)
    ]


def test_a_step_that_was_made_ahead_begins_when_the_one_before_it_ends(engine: Engine) -> None:
    first = engine.make(PROMPT, made_s=110.0)
    second = engine.make(Part(1024, 1024, 4096), made_s=110.1)
    (one,) = engine.steps.ended(first, 112.0)
    third = engine.make(DECODED, made_s=112.1)
    (two,) = engine.steps.ended(second, 115.0)
    assert (one.seconds, two.seconds) == (2.0, 3.0)
    assert (one.start, two.start) == (0, 1024)
    assert engine.steps.ended(third, 115.1) == []


def test_idle_time_is_no_part_of_a_step(engine: Engine) -> None:
    assert engine.step(PROMPT, made_s=1000.0, ended_s=1001.5) == [PrefillSample(1024, 0, 1.5)]


def test_a_step_whose_outcome_did_not_come_is_passed_over(engine: Engine) -> None:
    engine.make(PROMPT, made_s=100.0)
    assert engine.step(PROMPT, made_s=101.0, ended_s=103.0) == [PrefillSample(1024, 0, 2.0)]
    assert engine.steps.ended(engine.number, 104.0) == []


def test_more_steps_than_are_kept_forget_the_oldest(engine: Engine) -> None:
    first = engine.make(PROMPT, made_s=100.0)
    for _ in range(1000):
        last = engine.make(PROMPT, made_s=101.0)
    assert engine.steps.ended(first, 102.0) == []
    assert engine.steps.ended(last, 103.0) == [PrefillSample(1024, 0, 1.0)]


@pytest.mark.parametrize(
    "rows", [((512, 0), (512, 0)), ((300, 8000), (700, 100), (24, 0)), ((1024, 3000),)], ids=str
)
def test_several_rows_are_told_as_one_with_as_much_attention(
    engine: Engine, rows: tuple[tuple[int, int], ...]
) -> None:
    (told,) = engine.step(*(Part(n, at, at + n) for n, at in rows), made_s=100.0, ended_s=101.0)
    work = sum(n * (at + (n - 1) / 2) for n, at in rows)
    assert told.tokens == sum(n for n, _ in rows)
    # no row begins before 0, so that short prompts side by side count as one that is not shorter than all of them
    assert told.tokens * (told.start + (told.tokens - 1) / 2) == pytest.approx(
        max(work, told.tokens * (told.tokens - 1) / 2), rel=0.001
    )
