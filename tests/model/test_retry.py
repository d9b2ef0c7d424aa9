"""Which failures are retried, and the delays."""

import pytest

from sessiontree.model.base import ModelError, TextDelta, complete
from sessiontree.model.retry import RetryAttempt, RetryingModel
from sessiontree.model.scripted import ScriptedModel
from tests.model.requests import HELLO, collect_failure


def make_failure(kind, **facts) -> ModelError:
    return ModelError("scripted:scripted", kind, "no luck", **facts)


class SleepRecorder:
    def __init__(self) -> None:
        self.slept: list[float] = []
        self.attempts: list[RetryAttempt] = []

    def wrap(self, *answers, attempts: int = 4) -> RetryingModel:
        return RetryingModel(
            ScriptedModel(answers), attempts=attempts, base_delay=2, on_retry=self.attempts.append, sleep=self.sleep
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def waits() -> SleepRecorder:
    return SleepRecorder()


@pytest.mark.parametrize("kind", ["rate", "server", "timeout", "network"])
async def test_a_retryable_failure_is_retried(waits: SleepRecorder, kind) -> None:
    answer = await complete(waits.wrap(make_failure(kind), "Hello"), HELLO)

    assert answer["content"][0]["text"] == "Hello"
    assert len(waits.slept) == 1


@pytest.mark.parametrize("kind", ["overflow", "auth", "rejected", "unavailable"])
async def test_any_other_failure_is_raised_at_once(waits: SleepRecorder, kind) -> None:
    with pytest.raises(ModelError):
        await complete(waits.wrap(make_failure(kind), "Hello"), HELLO)

    assert waits.slept == []


async def test_each_delay_doubles_and_is_reported(waits: SleepRecorder) -> None:
    await complete(waits.wrap(make_failure("server"), make_failure("rate"), make_failure("network"), "Hello"), HELLO)

    assert [told.delay for told in waits.attempts] == waits.slept
    assert [(told.attempt, told.attempts, told.error.kind) for told in waits.attempts] == [
        (1, 4, "server"),
        (2, 4, "rate"),
        (3, 4, "network"),
    ]
    for longest, slept in zip((2, 4, 8), waits.slept, strict=True):
        assert 0.75 * longest <= slept <= longest


async def test_the_last_failure_is_raised_when_attempts_run_out(waits: SleepRecorder) -> None:
    with pytest.raises(ModelError) as caught:
        await complete(waits.wrap(make_failure("server"), make_failure("rate"), "never", attempts=2), HELLO)

    assert caught.value.kind == "rate"
    assert len(waits.slept) == 1


async def test_the_retry_delay_of_a_provider_is_respected(waits: SleepRecorder) -> None:
    await complete(waits.wrap(make_failure("rate", retry_after=30), "Hello"), HELLO)

    assert waits.slept == [30]


async def test_a_retry_delay_above_the_maximum_raises_at_once(waits: SleepRecorder) -> None:
    with pytest.raises(ModelError):
        await complete(waits.wrap(make_failure("rate", retry_after=3600), "Hello"), HELLO)

    assert waits.slept == []


async def test_a_started_answer_is_not_retried(waits: SleepRecorder) -> None:
    seen, _ = await collect_failure(waits.wrap(["Half", make_failure("network")], "Whole"))

    assert seen == [TextDelta("Half")]
    assert waits.slept == []


async def test_the_wrapper_has_the_info_of_its_model(waits: SleepRecorder) -> None:
    assert waits.wrap().info.name == "scripted:scripted"
