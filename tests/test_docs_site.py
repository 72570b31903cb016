"""The site of the docs as somebody reads it who has the built files alone: no server, no network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pages with the settings of the real site: the search is the same, and the build takes a second."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'acefl[dev]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("docs")
    for path in ("memory.md", "javascripts/iframe-worker.js"):
        (folder / "docs" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "docs" / path).write_text((ROOT / "docs" / path).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "docs/index.md").write_text("# Home\n")
    settings = re.sub(r"(?ms)^(nav|validation):.*?(?=^\S|\Z)", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    (folder / "mkdocs.yml").write_text(settings.replace("paths: [src]", f"paths: ['{ROOT / 'src'}']"))
    build(load_config(str(folder / "mkdocs.yml")))
    return folder / "site"


def test_no_page_asks_another_machine_for_a_script_or_a_style(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text(encoding="utf-8"))
        assert loaded == [], page.name


@pytest.mark.browser
def test_the_search_works_in_pages_opened_from_a_file(site: Path, browser: Chrome) -> None:
    browser.get((site / "index.html").as_uri())
    found = "return Array.from(document.querySelectorAll('.md-search-result__link'), (link) => link.href)"
    box = browser.find_element("css selector", ".md-search__input")
    browser.execute_script("document.getElementById('__search').click()")
    box.send_keys("checkpoint")
    links = WebDriverWait(browser, 30).until(lambda b: b.execute_script(found))
    assert any("memory.html" in link for link in links)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
