"""The page and the fragment, without a browser."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from normscope.report.document import Document, Text
from normscope.report.html import prose, sections, sort_value, to_fragment, to_html

from .documents import HOSTILE, document


class Skeleton(HTMLParser):
    """Every tag with the names of its attributes, in order; and every text and attribute value."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.values = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(sorted(name for name, _ in attrs))))
        self.values += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        self.tags.append(("comment", ()))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("write", [to_html, to_fragment])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_changes_no_tag_and_no_attribute(write, name):
    assert Skeleton(write(document(name))).tags == Skeleton(write(document("a layer"))).tags


@pytest.mark.parametrize("write", [to_html, to_fragment])
@pytest.mark.parametrize("name", HOSTILE[:7])
def test_a_hostile_name_is_shown_as_it_is(write, name):
    texts = "".join(Skeleton(write(document(name))).texts)
    assert f"{name} holds." in texts


@pytest.mark.parametrize("write", [to_html, to_fragment])
def test_characters_nobody_sees_are_written_out(write):
    page = write(document("\u202eexe\x1b[2J\u2028\ud800"))
    assert not set(page) & set("\u202e\x1b\u2028\ud800")
    assert "\\u202eexe\\x1b[2J\\u2028\\ud800 holds." in page
    page.encode("utf-8")


def test_the_page_fetches_nothing_and_runs_its_own_script_only():
    skeleton = Skeleton(to_html(document()))
    assert not [value for _, name, value in skeleton.values if name in ("src", "srcset", "action", "data", "style")]
    assert all(value.startswith("#") for _, name, value in skeleton.values if name == "href")
    assert not [name for _, name, _ in skeleton.values if name.startswith("on")]
    assert not {tag for tag, _ in skeleton.tags} & {"link", "iframe", "object", "embed", "img", "base", "form"}
    assert not re.search(r"url\(|@import|https?:", to_html(document()))


def test_the_policy_allows_the_script_by_its_hash():
    page = to_html(document())
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (
        value for tag, name, value in Skeleton(page).values if tag == "meta" and "default-src" in (value or "")
    )
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "'unsafe-eval'" not in policy
    # The policy stands before anything it governs.
    assert page.index("Content-Security-Policy") < page.index("<title>")


def test_the_page_has_contents_for_every_heading():
    page = to_html(document())
    found = re.findall(r'<li><a href="#(part-\d)">([^<]*)</a></li>', page)
    assert found == [
        ("part-1", "Summary of layer"),
        ("part-2", "Findings"),
        ("part-3", "Folded layer"),
        ("part-4", "Figures"),
        ("part-5", "Layers"),
    ]
    assert all(f'<section id="{anchor}">' in page for anchor, _ in found)


def test_inner_parts_stand_in_the_one_before_and_not_in_the_contents():
    texts = (Text(heading="A"), Text(heading="a1", folded=True, inner=True), Text(heading="a2", inner=True))
    shown = Document(blocks=(*texts, Text(heading="B"), Text(heading="b1", folded=True, inner=True)))
    found = sections(shown)
    assert [(part.heading, [one.heading for one in part.parts]) for part in found] == [
        ("A", ["a1", "a2"]),
        ("B", ["b1"]),
    ]
    page = to_html(shown)
    assert re.findall(r'<li><a href="#(part-\d)">', page) == ["part-1", "part-4"]
    assert all(f'<section id="part-{index}">' in page for index in range(1, 6))
    assert all(to_fragment(shown).count(heading) == 1 for heading in (">a1<", ">b1<"))


def test_numbers_carry_what_they_are_sorted_by():
    values = (2.5, 3, None, float("inf"), -float("inf"), float("nan"))
    assert [sort_value(value) for value in values] == ["2.5", "3", "", "Infinity", "-Infinity", ""]
    assert 'data-value="-Infinity">-inf<' in to_html(document())


def test_the_fragment_stands_anywhere():
    fragment = to_fragment(document())
    skeleton = Skeleton(fragment)
    assert not [name for _, name, _ in skeleton.values if name == "id"]
    assert not {tag for tag, _ in skeleton.tags} & {"script", "html", "head", "body", "meta", "button", "input"}
    assert fragment.lstrip().startswith('<div class="normscope fragment">')
    style = re.search(r"<style>(.*?)</style>", fragment, flags=re.DOTALL)[1]
    flat = re.sub(r"@media[^{]*\{", "", style)
    for selectors in re.findall(r"([^{}]+)\{", flat):
        assert all(".normscope" in selector for selector in selectors.split(",")), selectors


def test_the_style_and_the_script_cannot_end_their_elements():
    folder = resources.files("normscope.report") / "templates"
    for name in ("style.css", "light.css", "dark.css", "page.js"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "</" not in text
        assert "<!--" not in text


def test_what_is_folded_shows_its_heading_alone():
    page = to_html(document())
    folded = re.search(r'<section id="part-3">(.*?)</section>', page, flags=re.DOTALL)[1]
    summary, rest = folded.split("</summary>")
    assert "<h2>Folded layer</h2>" in summary
    assert "layer unfolds." in rest
    assert page.count("<details") == page.count("</details>") == 3  # the part, what more there is of two notices
    assert "<details open" not in page


def test_terms_lead_to_the_glossary_of_the_page_and_to_nothing_in_a_fragment():
    page = to_html(document())
    found = dict(re.findall(r'<span class="term"><a href="#(word-\d)">([^<]*)</a></span>', page))
    assert found == {"word-1": "norm", "word-2": "term layer"}
    assert all(f'<div id="{anchor}">' in page for anchor in found)
    assert 'class="term">norm<' in to_fragment(document())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Layer `4.1` is dead.", "Layer <code>4.1</code> is dead."),
        ("`a` and `b`", "<code>a</code> and <code>b</code>"),
        ("one ` alone", "one ` alone"),
        ("`<b>`", "<code>&lt;b&gt;</code>"),
        ("``", "``"),
        ("`a\u202eb`", "<code>a\\u202eb</code>"),
    ],
)
def test_names_between_backticks_are_code_and_stay_text(text, shown):
    assert str(prose(text)) == shown
