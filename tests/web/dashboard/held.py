"""Answers that are late: requests of a page that wait until a test lets them go on."""

from __future__ import annotations

from typing import Any


class Held:
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
        while not self._routes:
            self._page.wait_for_timeout(20)

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
