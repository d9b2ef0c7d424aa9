"""The feed of live events: numbered, bounded, and in one order with the entries."""

from __future__ import annotations

import asyncio
import threading

from sessiontree.server.live_events import EventFeed


def build_feed(count: int, limit: int = 1 << 20) -> EventFeed:
    feed = EventFeed(limit)
    for number in range(count):
        feed.publish("delta", {"text": f"{number:04}"}, lambda number=number: number // 10)
    return feed


def test_events_are_numbered_from_one() -> None:
    events = build_feed(3).read_after(0)

    assert events is not None
    assert [event.number for event in events] == [1, 2, 3]


def test_there_are_no_events_after_the_last_one() -> None:
    feed = build_feed(3)

    assert feed.last == 3
    assert list(feed.read_after(3) or ()) == []


def test_a_future_number_is_unknown() -> None:
    assert build_feed(3).read_after(4) is None


def test_the_size_of_the_buffer_is_limited() -> None:
    feed = build_feed(1000, limit=1000)

    kept = feed.read_after(feed.last - 10)
    assert kept is not None
    assert [event.number for event in kept] == list(range(991, 1001))
    assert feed.read_after(0) is None
    assert sum(len(event.data) for event in feed.read_after(1000 - 1000 // len(kept[0].data)) or ()) <= 1000


def test_an_event_larger_than_the_buffer_is_still_sent() -> None:
    feed = EventFeed(10)
    feed.publish("delta", {"text": "x" * 100}, lambda: 0)

    assert len(feed.read_after(0) or ()) == 1


def test_a_client_gets_the_events_after_its_entries() -> None:
    feed = build_feed(50)

    assert feed.find_start(3) == 30
    assert feed.find_start(0) == 0
    assert feed.find_start(99) == feed.last


def test_invalid_unicode_is_replaced() -> None:
    feed = EventFeed(1000)
    feed.publish("delta", {"text": "\ud800"}, lambda: 0)

    (event,) = feed.read_after(0) or ()
    assert event.data.decode() == '{"text":"\ufffd"}'


async def test_waiting_clients_are_woken_from_any_thread() -> None:
    feed = EventFeed(1000)
    with feed.subscribe() as first, feed.subscribe() as second:
        threading.Thread(target=feed.publish, args=("run", {}, lambda: 0)).start()
        async with asyncio.timeout(60):
            await first.wait()
            await second.wait()


async def test_a_closed_subscription_is_not_woken() -> None:
    feed = EventFeed(1000)
    with feed.subscribe() as event:
        pass

    feed.wake()
    await asyncio.sleep(0)
    assert not event.is_set()
