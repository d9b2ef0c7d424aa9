"""The site is built strictly, has every page in its navigation, and works in a browser without a network."""

import http.server
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import sessiontree

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site built from a copy, so that runs beside each other do not meet."""
    folder = tmp_path_factory.mktemp("site")
    copy_project(folder)
    built = subprocess.run(
        [sys.executable, "scripts/build_site.py"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "build" / "site"


def copy_project(folder: Path) -> None:
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for name in ("scripts", "src"):
        (folder / name).symlink_to(ROOT / name)


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def list_navigation() -> list[str]:
    return re.findall(r"\s([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    listed = list_navigation()

    assert sorted(path for path in listed if not path.startswith("reference/")) == sorted(written)


def test_every_generated_page_is_in_the_navigation(site: Path) -> None:
    built = {str(page.relative_to(site).with_suffix(".md")) for page in (site / "reference").rglob("*.html")}

    assert built == {path for path in list_navigation() if path.startswith("reference/")}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = "\n".join(page.read_text() for page in (site / "reference" / "python").glob("*.html"))

    for name in sessiontree.__all__:
        assert name == "__version__" or re.search(rf'id="sessiontree\.[\w.]*\b{name}"', text), name


@pytest.mark.parametrize("width", [390, 1280])
def test_search_finds_a_page_without_a_network(browser: Browser, address: str, width: int) -> None:
    with browser.new_page(viewport={"width": width, "height": 800}) as page:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{address}/index.html")
        field = page.locator("input:visible")
        while field.count() == 0:  # the key counts only once the script of the page runs
            page.keyboard.press("/")
            page.wait_for_timeout(200)
        field.first.fill("compaction")
        page.get_by_text(re.compile(r"^\d\d+ results")).wait_for()

        assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []


def test_the_widest_pages_fit_a_phone(browser: Browser, address: str, site: Path) -> None:
    with browser.new_page(viewport={"width": 390, "height": 800}) as page:
        wide: list[str] = []
        for path in [site / "index.html", site / "speed.html", *(site / "reference").rglob("*.html")]:
            page.goto(f"{address}/{path.relative_to(site)}")
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(path.name)

        assert wide == []
