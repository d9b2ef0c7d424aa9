"""Long JSON arrays are split into their objects, however the file is cut into blocks."""

import json
import random
import tracemalloc
from collections.abc import Iterator

import pytest

from sessiontree.errors import FormatError
from sessiontree.interop import json_array
from sessiontree.interop.json_array import split_array

OBJECTS: list[object] = [
    {"title": 'A "quoted" } ] [ { \\\\', "mapping": {"a": [{}, [], {"b": "}"}]}},
    {},
    {"title": "\u00fc\U0001f333", "number": 1.5, "none": None, "list": [[1, 2], ["]"]]},
]


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_every_object_is_found_in_blocks_of_any_size(size: int, is_ascii: bool) -> None:
    data = json.dumps([OBJECTS[0], 7, "text {", *OBJECTS[1:]], ensure_ascii=is_ascii, indent=1).encode()

    assert [json.loads(found) for found in split_array("x", cut(data, size))] == OBJECTS


def test_a_file_can_be_one_object() -> None:
    data = json.dumps(OBJECTS[0]).encode()

    assert list(split_array("x", cut(data + b"\n", 5))) == [data]


@pytest.mark.parametrize("seed", range(50))
def test_a_file_that_is_cut_off_gives_what_is_before_the_cut(seed: int) -> None:
    chance = random.Random(seed)
    data = json.dumps(OBJECTS).encode()
    found: list[object] = []

    with pytest.raises(FormatError, match="the end is missing"):
        found.extend(
            map(json.loads, split_array("x", cut(data[: chance.randrange(len(data) - 1)], chance.randint(1, 50))))
        )

    assert found == OBJECTS[: len(found)]


def test_only_the_objects_that_are_read_are_in_memory() -> None:
    one = json.dumps({"text": "x" * 10_000}).encode()

    def write_blocks() -> Iterator[bytes]:
        yield b"["
        for _ in range(2_000):
            yield one + b","
        yield one + b"]"

    tracemalloc.start()
    count = sum(1 for _ in split_array("x", write_blocks()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 2_001
    assert peak < 1 << 20


def test_an_object_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "MAX_ELEMENT", 1 << 20)
    data = json.dumps([{"text": "x" * (2 << 20)}]).encode()

    with pytest.raises(FormatError, match="longer than 1 MiB"):
        list(split_array("x", cut(data, 4096)))
