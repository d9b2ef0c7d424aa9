"""Answers that are late: requests of a page, or what is answered to one, that wait until a test lets them go on."""

from __future__ import annotations

from typing import Any


class HeldRequests:
    """All requests to what `address` matches, or only the first `most` of them."""

    def __init__(self, page: Any, address: Any, *, most: int | None = None) -> None:
        self._page = page
        self._most = most
        self._routes: list[Any] = []
        page.route(address, self._hold)

    def _hold(self, route: Any) -> None:
        if self._most is not None and len(self._routes) >= self._most:
            route.continue_()
        else:
            self._routes.append(route)

    def __len__(self) -> int:
        return len(self._routes)

    def wait(self) -> None:
        """Until one is held."""
        for _ in range(500):
            if self._routes:
                return
            self._page.wait_for_timeout(20)
        raise AssertionError("nobody asked")

    def release(self) -> None:
        """Let what is held, and all that comes, go on."""
        self._most = 0
        for route in self._routes:
            route.continue_()

    def lose(self) -> None:
        """Answer nothing to what is held, as if the server were away."""
        self._most = 0
        for route in self._routes:
            route.abort()


class DelayedResponse:
    """The first answer to an address, which waits until it is let go; those after it come at once."""

    def __init__(self, page: Any, address: Any) -> None:
        self._page = page
        self._answers: list[tuple[Any, Any]] = []
        page.route(address, self._intercept)

    def _intercept(self, route: Any) -> None:
        if self._answers:
            route.continue_()
        else:
            self._answers.append((route, route.fetch()))

    def wait(self, doing: str = "") -> None:
        """Until it has been asked for, by what is done meanwhile."""
        for _ in range(500):
            if self._answers:
                return
            self._page.evaluate(doing)
            self._page.wait_for_timeout(20)
        raise AssertionError("nobody asked")

    def release(self) -> None:
        route, answer = self._answers[0]
        route.fulfill(response=answer)
        self._page.wait_for_timeout(300)  # whatever it would change, it has changed
