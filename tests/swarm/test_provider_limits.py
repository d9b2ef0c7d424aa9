"""Limits of providers hold for all workers of a work database together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.config import ConfigError, ProviderLimits, load_config
from sessiontree.model.base import Model, ModelEvent, Request
from sessiontree.swarm.durable import provider_limits
from sessiontree.swarm.durable.database import WorkDatabase
from sessiontree.swarm.durable.job_queue import JobQueue, WorkerInfo
from sessiontree.swarm.durable.provider_limits import CallCounter, ProviderGate


@pytest.fixture(params=["file", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> WorkDatabase:
    where = str(tmp_path / "work.db") if request.param == "file" else request.getfixturevalue("database_address")
    database = WorkDatabase(where)
    database.migrate()
    return database


@pytest.fixture
def database_address(server: object) -> str:
    return server.new_database()  # type: ignore[attr-defined,no-any-return]


def register(database: WorkDatabase, lease: float = 60) -> str:
    worker = WorkerInfo(id=f"w-{os.urandom(4).hex()}", host="here", concurrency=3, home="h")
    JobQueue(database).register(worker, lease)
    return worker.id


def test_two_workers_share_the_calls_at_the_same_time(database: WorkDatabase) -> None:
    counter, limits = CallCounter(database), ProviderLimits(concurrent=2)
    one, two = register(database), register(database)

    assert counter.begin("a", "test", one, limits)
    assert counter.begin("b", "test", two, limits)
    assert not counter.begin("c", "test", two, limits)
    assert counter.begin("d", "other", two, limits)
    counter.end("a")
    assert counter.begin("c", "test", two, limits)


def test_calls_of_a_dead_worker_do_not_count(database: WorkDatabase) -> None:
    counter, limits = CallCounter(database), ProviderLimits(concurrent=1)
    dead, alive = register(database), register(database)

    assert counter.begin("a", "test", dead, limits)
    assert not counter.begin("b", "test", alive, limits)
    JobQueue(database).retire(dead)
    assert counter.begin("b", "test", alive, limits)


def test_the_calls_of_a_minute_are_limited(database: WorkDatabase) -> None:
    counter, limits = CallCounter(database), ProviderLimits(per_minute=2)
    worker = register(database)

    for id in ("a", "b"):
        assert counter.begin(id, "test", worker, limits)
        counter.end(id)
    assert not counter.begin("c", "test", worker, limits)
    database.execute("UPDATE {t}call SET began = began - 61 WHERE id = 'a'")
    assert counter.begin("c", "test", worker, limits)
    assert database.query("SELECT count(*) FROM {t}call")[0][0] == 2, "the old one is deleted"


class CountingModel:
    """Counts how many of its calls run at the same time."""

    def __init__(self) -> None:
        self.info = st.ScriptedModel().info
        self.running = self.most = self.calls = 0

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        self.running += 1
        self.calls += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        async for event in st.ScriptedModel(["Done."]).stream(request):
            yield event


async def ask(model: Model) -> None:
    async for _ in model.stream(Request(messages=[{"role": "user", "content": "Hello"}])):
        pass


async def test_a_limited_model_waits_for_its_turn(database: WorkDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_limits, "POLL_SECONDS", 0.01)
    model = CountingModel()
    provider = model.info.provider
    limits = {provider: ProviderLimits(concurrent=2)}
    gates = [ProviderGate(CallCounter(database), register(database), limits) for _ in range(2)]

    await asyncio.gather(*[ask(gates[number % 2].wrap(model, lambda: False)) for number in range(8)])

    assert (model.calls, model.most) == (8, 2)
    assert ProviderGate(CallCounter(database), "w", {}).wrap(model, lambda: False) is model


async def test_a_call_that_waits_is_cancelled_when_it_is_unwanted(
    database: WorkDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_limits, "POLL_SECONDS", 0.01)
    model, worker = CountingModel(), register(database)
    limits = {model.info.provider: ProviderLimits(concurrent=1)}
    counter = CallCounter(database)
    assert counter.begin("a", model.info.provider, worker, limits[model.info.provider])

    waiting = asyncio.create_task(ask(ProviderGate(counter, worker, limits).wrap(model, lambda: True)))
    await asyncio.wait([waiting])

    assert waiting.cancelled()
    assert model.calls == 0


def test_limits_are_configured_by_provider(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[limits.anthropic]\nconcurrent = 20\nper_minute = 500\n")
    assert load_config(file).limits == {"anthropic": ProviderLimits(concurrent=20, per_minute=500)}

    file.write_text("[limits.anthropic]\nconcurrent = 0\n")
    with pytest.raises(ConfigError, match="anthropic"):
        load_config(file)
