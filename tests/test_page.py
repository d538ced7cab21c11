"""What a page is made of; tests/test_browser.py shows that it works."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from written import result_of

from dyneval import page
from dyneval.page import markup
from dyneval.page.payload import packed, payload


class Elements(HTMLParser):
    """The elements of a page, their attributes, and what scripts and styles hold."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self.last = [], {}, ""
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.found.append((name, dict(attributes)))
        self.last = name

    def handle_endtag(self, name):
        self.last = ""

    def handle_data(self, data):
        self.texts.setdefault(self.last, []).append(data)


def test_text_and_attributes_are_escaped():
    found = markup.tag(
        "td", "<b> & \"'", markup.tag("br"), None, class_='"><i>', data_of="/a", x=None
    )
    assert found == (
        '<td class="&quot;&gt;&lt;i&gt;" data-of="/a">&lt;b&gt; &amp; &quot;&#x27;<br></td>'
    )


def test_numbers_carry_their_full_value():
    found = markup.number(-1.23456789, "-1.23", "/a/b")
    assert found == '<data value="-1.23456789" data-of="/a/b">−1.23</data>'
    assert "–" in markup.number(None, "0")


def test_data_cannot_end_its_element():
    found = markup.data({"</script><!--": "&\u2028"})
    inner = re.fullmatch(r'<script type="application/json">(.*)</script>', found)[1]
    assert not set("<>&\u2028") & set(inner)
    assert json.loads(inner) == {"</script><!--": "&\u2028"}


def test_only_the_page_s_own_script_may_run_and_nothing_is_fetched():
    elements = Elements(page.build({"a": result_of(b"</style></script><script>x")}))
    policy = next(a["content"] for n, a in elements.found if a.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("img-src") == "data:"
    for name, rule in rules.items():
        text = elements.texts[name.removesuffix("-src")][-1]
        assert (
            rule == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        )
    assert sorted(rules) == ["script-src", "style-src"]
    names = {name for name, _ in elements.found}
    assert not names & {"img", "iframe", "object", "embed", "base", "form"}
    for name, attributes in elements.found:
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "style")]
        assert attributes.get("href", "#").startswith(("#", "data:,")), name
    assert "url(" not in elements.texts["style"][0]
    assert "@import" not in elements.texts["style"][0]


def test_nats_lose_no_digit():
    nats = np.random.default_rng(1).exponential(2.0, 9)
    for values, kind in ((nats, "f8"), (nats.astype(np.float32).astype(float), "f4")):
        (found, _) = payload(result_of(b"123456789", nats={"a": values, "b": values}), None)["nats"]
        assert found["type"] == kind
        read = np.frombuffer(base64.b64decode(found["data"]), f"<{kind}")
        assert (read == values).all()


@pytest.mark.parametrize(("count", "kind"), [(1, "u1"), (256, "u1"), (257, "u2"), (70_000, "u4")])
def test_numbers_of_cells_take_little_room(count, kind):
    text = "".join(map(chr, range(0x1000, 0x1000 + min(count, 40_000))))
    text += "".join(map(chr, range(0x20000, 0x20000 + max(0, count - 40_000))))
    from dyneval import spelling

    result = result_of(text, "characters", nats={"a": np.ones(count)})
    found = payload(result, spelling.cells(result.scored.tokens, result.vocabulary))["text"]
    assert found["ids"]["type"] == kind
    assert len(found["pieces"]) == count


def test_arrays_are_packed_in_one_order_of_bytes():
    assert packed(np.array([1, 256], ">u2")) == packed(np.array([1, 256], "<u2"))


def test_tables_stand_without_a_script():
    text = page.build({"a": result_of(b"the cat saw the cat, and the cat it " * 9, note="a piece")})
    for part in ("static", "dynamic", "embedding.weight", "a piece", "the cat", "fused: in tests"):
        assert part in text
    assert "<noscript>" in text


def test_there_must_be_a_result():
    with pytest.raises(ValueError, match="there is no result to report"):
        page.build({})


def test_a_page_is_an_html_file(tmp_path):
    with pytest.raises(ValueError, match="give .html"):
        page.write({"a": result_of(b"abc")}, tmp_path / "page.txt")
    page.write({"a": result_of(b"abc")}, tmp_path / "page.html")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
