"""Requests and responses of a page that a test delays."""

from __future__ import annotations

from typing import Any


class HeldRequests:
    """Holds all requests that match `address`, or only the first `most` of them."""

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
        """Wait until a request is held."""
        for _ in range(500):
            if self._routes:
                return
            self._page.wait_for_timeout(20)
        raise AssertionError("no request arrived")

    def release(self) -> None:
        """Continue the held requests and all later ones."""
        self._most = 0
        for route in self._routes:
            route.continue_()

    def lose(self) -> None:
        """Abort the held requests, as if the server were unreachable."""
        self._most = 0
        for route in self._routes:
            route.abort()


class DelayedResponse:
    """Holds the first response of an address until `release`; later responses are not delayed."""

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
        """Run `doing` in the page until the request arrives."""
        for _ in range(500):
            if self._answers:
                return
            self._page.evaluate(doing)
            self._page.wait_for_timeout(20)
        raise AssertionError("no request arrived")

    def release(self) -> None:
        route, answer = self._answers[0]
        route.fulfill(response=answer)
        self._page.wait_for_timeout(300)  # give the page time to process it
