"""The page in a real browser: Debian's chromium."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.report.html import to_fragment, to_html

from .browser import Browser
from .documents import HOSTILE, document

pytestmark = pytest.mark.browser

LAYERS = [row[0] for row in document().blocks[-1].rows]
NAMES = "[...document.querySelectorAll('tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
SORTED = "[...document.querySelectorAll('th')].map(h => h.ariaSort)"
TIP = "document.getElementById('tip').hidden ? null : document.getElementById('tip').textContent"
PAPER = "getComputedStyle(document.documentElement).backgroundColor"


@pytest.fixture(scope="module")
def chromium():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture
def page(chromium, path):
    file = path / "page.html"
    if not file.exists():
        file.write_text(to_html(document()), encoding="utf-8")
    chromium.open(file)
    yield chromium
    assert chromium.errors == []
    assert chromium.dialogs == []


def head(column):
    return f"th:nth-child({column}) button"


def tab_to(browser, found, most=60):
    """Press Tab until a JavaScript expression holds: whatever is reached is reached by the keyboard."""
    for _ in range(most):
        browser.press("Tab")
        if browser.evaluate(found):
            return
    raise AssertionError(f"Tab does not reach: {found}")


def test_a_header_sorts_numbers_up_then_down_then_not_at_all(page):
    page.click(head(2))
    rising = [
        *("layer3.norm", "layer4.norm", "layer6.norm", "head", "layer7.norm"),
        *("layer10.conv", "layer5.norm", "layer2.conv", "layer1.conv"),
    ]
    assert page.evaluate(NAMES) == rising
    assert page.evaluate(SORTED) == ["none", "ascending", "none", "none"]
    page.click(head(2))
    falling = [
        *("layer2.conv", "layer10.conv", "layer5.norm", "layer7.norm", "head"),
        *("layer6.norm", "layer4.norm", "layer3.norm", "layer1.conv"),
    ]
    assert page.evaluate(NAMES) == falling
    assert page.evaluate(SORTED) == ["none", "descending", "none", "none"]
    page.click(head(2))
    assert page.evaluate(NAMES) == LAYERS
    assert page.evaluate(SORTED) == ["none"] * 4


def test_the_filter_narrows_and_counts(page):
    count = "document.querySelector('.filter output').textContent"
    assert page.evaluate(count) == "9 rows"
    page.click(".filter input")
    page.write("CONV 300")
    assert page.evaluate(NAMES) == ["layer10.conv"]
    assert page.evaluate(count) == "1 of 9 rows"
    assert page.evaluate("document.querySelector('.filter output').ariaLive") == "polite"
    page.evaluate(
        "(i => { i.value = 'nowhere'; i.dispatchEvent(new Event('input')); })(document.querySelector('.filter input'))"
    )
    assert page.evaluate(count) == "0 of 9 rows"
    page.evaluate(
        "(i => { i.value = ''; i.dispatchEvent(new Event('input')); })(document.querySelector('.filter input'))"
    )
    assert page.evaluate(NAMES) == LAYERS


def test_the_keyboard_sorts_filters_and_changes_the_theme(page):
    tab_to(page, "document.activeElement.classList.contains('theme')")
    before = page.evaluate(PAPER)
    page.press("Enter")
    assert page.evaluate(PAPER) != before
    tab_to(page, "document.activeElement.type === 'search'")
    page.write("conv")
    assert len(page.evaluate(NAMES)) == 3
    tab_to(page, "document.activeElement.matches('th:nth-child(3) button')")
    page.press("Enter")
    assert page.evaluate(SORTED) == ["none", "none", "ascending", "none"]
    page.press(" ")
    assert page.evaluate(SORTED) == ["none", "none", "descending", "none"]
    assert page.evaluate(NAMES) == ["layer10.conv", "layer1.conv", "layer2.conv"]


def test_hovering_a_chart_shows_its_figures(page):
    page.hover("svg.chart .place:nth-of-type(1) .band")
    assert page.evaluate(TIP) == "layer0\nnorm layer: 0 to 1\nexact: 1.5\nbound: 0.5"
    box = page.evaluate(
        "(b => [b.left, b.top, b.right, b.bottom])(document.getElementById('tip').getBoundingClientRect())"
    )
    assert box[0] >= 0
    assert box[1] >= 0
    assert box[2] <= 1280
    assert box[3] <= 900
    assert page.evaluate("document.querySelectorAll('svg title').length") == 0  # no second tooltip of the browser's
    page.hover("h1")
    assert page.evaluate(TIP) is None


def test_arrow_keys_walk_along_a_chart(page):
    tab_to(page, "document.activeElement.matches('svg.chart')")
    assert page.evaluate(TIP).startswith("layer0\n")
    page.press("ArrowRight")
    assert page.evaluate(TIP) == "layer1\nnorm layer: -inf to 1\nbound: 1"
    page.press("End")
    assert page.evaluate(TIP).startswith("layer4\n")
    page.press("ArrowRight")
    assert page.evaluate(TIP).startswith("layer4\n")
    page.press("Home")
    assert page.evaluate(TIP).startswith("layer0\n")
    assert page.evaluate("document.querySelector('.aloud').textContent").startswith("layer0\n")
    page.press("Tab")
    assert page.evaluate("document.querySelectorAll('.place.here').length") <= 1


def test_nothing_is_asked_of_the_network(page, path):
    page.hover("svg.chart .place .band")
    page.click(head(2))
    page.settle()
    assert page.requests == [(path / "page.html").resolve().as_uri()]


UNFOLD = "document.querySelectorAll('details').forEach(fold => (fold.open = true))"


@pytest.mark.parametrize("width", [390, 400, 1280, 1400])
def test_the_page_never_scrolls_sideways(page, width):
    page.evaluate(UNFOLD)
    page.size(width, 844)
    page.settle()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_table_of_a_check_is_whole_at_1400_pixels_and_keeps_its_names_at_400(chromium, path):
    blocks = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Sigmoid()) for _ in range(3)]
    model = nn.Sequential(OrderedDict(encoder_blocks=nn.Sequential(nn.Conv2d(3, 16, 3), *blocks), head=nn.ReLU()))
    ns.check(model, 1e3 * torch.ones(4, 3, 12, 12)).to_html(path / "check.html")
    chromium.open(path / "check.html")
    chromium.size(1400, 900)
    chromium.settle()
    cut = "(box => [box.scrollWidth - box.clientWidth, box.querySelectorAll('th').length])"
    hidden, columns = chromium.evaluate(f"{cut}(document.querySelector('.table .scroll'))")
    assert hidden <= 0
    assert columns >= 10
    chromium.size(400, 900)
    chromium.evaluate("document.querySelector('.table .scroll').scrollLeft = 300")
    chromium.settle()
    first = "document.querySelector('tbody td').getBoundingClientRect()"
    assert 0 <= chromium.evaluate(f"{first}.left") < 60
    assert chromium.evaluate(f"{first}.width") < 200


def test_tiles_and_cards_survive_the_styles_of_a_notebook(chromium, path):
    styles = ".jp-Output dl dt { float: left; clear: left; width: 20%; } .jp-Output dd { float: right; width: 50%; }"
    shown = to_fragment(document())
    (path / "notebook.html").write_text(f'<style>{styles}</style><div class="jp-Output">{shown}</div>')
    chromium.open(path / "notebook.html")
    lists = "[...document.querySelectorAll('dt, dd')].map(item => getComputedStyle(item).float)"
    floats = chromium.evaluate(lists)
    assert floats
    assert set(floats) == {"none"}


@pytest.mark.parametrize("width", [390, 400, 800, 1400])
def test_charts_fit_and_their_letters_can_be_read(page, width):
    page.evaluate(UNFOLD)
    page.size(width, 844)
    page.settle()
    shown = page.evaluate(
        "[...document.querySelectorAll('svg.chart')].filter(s => s.getBoundingClientRect().width).map(s => {"
        "const box = s.getBoundingClientRect(), scale = box.width / s.viewBox.baseVal.width;"
        "return [box.right, scale * parseFloat(getComputedStyle(s.querySelector('text.tick')).fontSize),"
        "s.parentElement.scrollWidth - s.parentElement.clientWidth]; })"
    )
    assert len(shown) == 3  # each chart once
    for right, letters, hidden in shown:
        assert right <= width
        assert letters >= 9.0
        assert hidden <= 0


def test_what_is_folded_opens_for_the_contents_for_a_term_and_for_print(page):
    opened = "document.querySelector('details.part').open"
    assert page.evaluate(opened) is False
    page.click('nav a[href="#part-3"]')
    assert page.evaluate(opened) is True
    page.evaluate("document.querySelector('details.part').open = false")
    page.click("#part-4 .term a")
    page.settle()
    assert page.evaluate(opened) is True
    assert page.evaluate("location.hash") == "#word-2"
    page.evaluate("document.querySelector('details.part').open = false")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(opened) is True
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(opened) is False


def test_hostile_names_do_nothing(chromium, path):
    file = path / "hostile.html"
    elements = "[...document.querySelectorAll('*:not(#tip *)')]"
    counts = f"{elements}.reduce((n, e) => (n[e.localName] = (n[e.localName] || 0) + 1, n), {{}})"
    file.write_text(to_html(document("a layer")), encoding="utf-8")
    chromium.open(file)
    calm = chromium.evaluate(counts)
    for name in HOSTILE:
        file.write_text(to_html(document(name)), encoding="utf-8")
        chromium.open(file)
        chromium.hover("svg.chart .place .band")
        chromium.hover(head(2))
        chromium.click(head(1))
        chromium.settle()
        assert chromium.evaluate(counts) == calm
        assert chromium.dialogs == []
        assert chromium.errors == []
        assert len(chromium.requests) == 1


def test_an_injected_script_would_not_run(chromium, path):
    file = path / "injected.html"
    file.write_text(to_html(document()).replace("</main>", "<script>alert(1)</script></main>"), encoding="utf-8")
    chromium.open(file)
    assert chromium.dialogs == []
    assert any("Content Security Policy" in error for error in chromium.errors)


def test_a_curve_tells_its_values_and_alarms_where_the_pointer_rests(page):
    page.hover("svg.curves .place:nth-of-type(5)")
    page.settle()
    assert "layer 10" in page.evaluate(TIP)
    assert "first layer: 2" in page.evaluate(TIP)
    assert "alarm in layer" in page.evaluate(TIP)
