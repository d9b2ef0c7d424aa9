"""Signing in over HTTP: a code is exchanged once for a cookie, which is valid only from our page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sessiontree.server.auth import (
    BROWSER_SECONDS,
    MAX_BROWSERS,
    SCOPES,
    IssuedToken,
    TokenStore,
    add_seconds,
    get_cookie_name,
    get_time_now,
    issue_token,
)
from tests.server.conftest import BASE, PORT, ServerEnv

OURS = {"origin": BASE}
COOKIE = get_cookie_name(PORT)


@pytest.fixture
async def browser(env: ServerEnv) -> AsyncIterator[httpx.AsyncClient]:
    """A client with cookies and no token."""
    app = env.build_app()
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        yield client


def create_code(*, seconds: float = 600) -> IssuedToken:
    made = issue_token(SCOPES, kind="code", created=get_time_now(), expires=add_seconds(get_time_now(), seconds))
    TokenStore().add(made.token)
    return made


async def test_a_code_is_exchanged_once_for_a_cookie(browser: httpx.AsyncClient) -> None:
    code = create_code()

    signed = await browser.post("/sign-in", json={"code": code.secret}, headers=OURS)
    again = await browser.post("/sign-in", json={"code": code.secret}, headers=OURS)

    said = signed.headers["set-cookie"]
    assert signed.status_code == 200
    assert said.startswith(f"{COOKIE}=st_")
    assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={int(BROWSER_SECONDS)}"} <= set(said.split("; "))
    assert "Secure" not in said
    assert (again.status_code, again.json()["error"]["code"]) == (401, "used_link")
    assert "sessiontree token link" in again.json()["error"]["message"]
    assert (await browser.get("/api/me")).json()["kind"] == "browser"


async def test_behind_tls_the_cookie_is_sent_over_tls_only(env: ServerEnv) -> None:
    from sessiontree.server.request_checks import build_allowed_hosts

    app = env.build_app(hosts=build_allowed_hosts("127.0.0.1", PORT, ["tower.example:443"]))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="https://tower.example") as client,
    ):
        headers = {"origin": "https://tower.example"}
        signed = await client.post("/sign-in", json={"code": create_code().secret}, headers=headers)

    assert signed.headers["set-cookie"].endswith("; Secure")


async def test_a_browser_stays_signed_in_after_a_server_restart(env: ServerEnv, browser: httpx.AsyncClient) -> None:
    await browser.post("/sign-in", json={"code": create_code().secret}, headers=OURS)

    app = env.build_app(tokens=TokenStore([issue_token(SCOPES).token]))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=BASE, cookies=browser.cookies) as later_on,
    ):
        assert (await later_on.get("/api/sessions")).status_code == 200


async def test_an_expired_code_is_refused(browser: httpx.AsyncClient) -> None:
    answer = await browser.post("/sign-in", json={"code": create_code(seconds=-1).secret}, headers=OURS)

    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (OURS, 201),
        ({"sec-fetch-site": "same-origin"}, 201),
        ({"sessiontree-page": "tab"}, 201),
        ({}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sessiontree-page": "tab"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
    ],
)
async def test_a_write_with_a_cookie_must_come_from_our_page(
    browser: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    await browser.post("/sign-in", json={"code": create_code().secret}, headers=OURS)

    answer = await browser.post("/api/sessions", json={}, headers=headers)

    assert answer.status_code == status, answer.text


async def test_a_page_on_another_port_cannot_read_with_the_cookie(browser: httpx.AsyncClient) -> None:
    await browser.post("/sign-in", json={"code": create_code().secret}, headers=OURS)

    assert (await browser.get("/api/sessions", headers={"sec-fetch-site": "same-site"})).status_code == 403
    assert (await browser.get("/api/sessions", headers={"sec-fetch-site": "none"})).status_code == 200


async def test_cookies_and_header_tokens_are_not_interchangeable(env: ServerEnv, browser: httpx.AsyncClient) -> None:
    await browser.post("/sign-in", json={"code": create_code().secret}, headers=OURS)
    cookie = browser.cookies[COOKIE]
    browser.cookies.clear()

    as_header = await browser.get("/api/me", headers={"authorization": f"Bearer {cookie}"})
    as_cookie = await browser.get("/api/me", headers={"cookie": f"{COOKIE}={env.owner.secret}"})

    assert (as_header.status_code, as_cookie.status_code) == (401, 401)


async def test_a_browser_that_signed_in_with_a_token_is_signed_out_with_it(
    env: ServerEnv, browser: httpx.AsyncClient
) -> None:
    reader = env.create_token("read")
    assert (await browser.post("/sign-in", json={"token": reader.secret}, headers=OURS)).status_code == 200
    assert (await browser.get("/api/me")).json()["scopes"] == ["read"]

    TokenStore().revoke(reader.token.id)

    assert (await browser.get("/api/me")).status_code == 401


async def test_signing_out_invalidates_the_cookie(browser: httpx.AsyncClient) -> None:
    await browser.post("/sign-in", json={"code": create_code().secret}, headers=OURS)
    kept = {"cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}

    assert (await browser.post("/sign-out", json={})).status_code == 403, "nobody says where it comes from"
    out = await browser.post("/sign-out", json={}, headers=OURS)

    assert "Max-Age=0" in out.headers["set-cookie"]
    assert (await browser.get("/api/me", headers=kept)).status_code == 401


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"code":1}', b'{"code":"a","token":"b"}', b'{"cod":"a"}', b"\xff", b"[" * 5000]
)
async def test_invalid_sign_in_requests_are_refused(browser: httpx.AsyncClient, body: bytes) -> None:
    headers = {**OURS, "content-type": "application/json"}

    answer = await browser.post("/sign-in", content=body, headers=headers)

    assert answer.status_code == 422
    assert (await browser.get("/sign-in")).status_code == 405
    assert (await browser.post("/sign-in", data={"code": "x"}, headers=OURS)).status_code == 415


def test_tokens_expire_and_are_removed(tmp_path: Path) -> None:
    now = ["2026-01-01T00:00:00.000Z"]
    tokens = TokenStore(file=str(tmp_path / "tokens.json"), now=lambda: now[0])
    made = issue_token(["read"], created=now[0], expires=add_seconds(now[0], 60))
    tokens.add(made.token)
    signed = tokens.sign_in(made.secret, "program")
    assert signed is not None
    assert (tokens.is_valid(made.token), tokens.is_valid(signed.token)) == (True, True)
    assert signed.token.expires == made.token.expires, "a browser is not signed in for longer than its token lasts"

    now[0] = add_seconds(now[0], 60)

    assert tokens.find(made.secret) is None
    assert tokens.find(signed.secret, "browser") is None
    other = issue_token(["read"]).token
    tokens.add(other)
    assert tokens.read_stored() == (other,)


def test_above_the_limit_the_oldest_browser_is_signed_out(tmp_path: Path) -> None:
    owner = issue_token(SCOPES)
    tokens = TokenStore([owner.token], file=str(tmp_path / "tokens.json"))
    signed = [tokens.sign_in(owner.secret, "program") for _ in range(MAX_BROWSERS + 1)]

    known = [made is not None and tokens.is_valid(made.token) for made in signed]

    assert known == [False, *[True] * MAX_BROWSERS]
