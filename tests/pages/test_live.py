"""The page of runs that go on, in a real browser."""

import json
import math
import threading
from dataclasses import replace
from http.client import HTTPConnection

import pytest

import normscope as ns
from normscope.core.finding import Finding, Severity
from normscope.doctor.monitor.log import LogWriter
from normscope.doctor.pages.live import Followed, LiveServer, live_data
from normscope.doctor.pages.run import run_document
from normscope.report.html import to_html

from ..monitor import logs
from ..report.browser import Browser
from ..report.documents import HOSTILE

POINTS = (
    "[...document.querySelectorAll('figure[data-chart=loss] .curve')].map(g => [g.dataset.run,"
    " g.querySelector('path').getAttribute('d')])"
)


@pytest.fixture
def folders(tmp_path):
    logs.write(tmp_path / "a", ended=False)
    logs.write(tmp_path / "b", rate=0.5, findings=(), steps=60)
    return tmp_path


@pytest.fixture
def server(folders):
    runs = [Followed(folders / "a"), Followed(folders / "b")]
    with LiveServer(runs, ["a", "b"]) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def asked(server, path, method="GET", **headers):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


# ---- the server


def test_it_listens_to_this_machine_alone_and_says_nothing_without_its_word(server):
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.word) >= 32
    here = f"127.0.0.1:{server.server_port}"
    for path in ("/", "/data", "/x/", "/x/data", f"/{server.word[:-1]}/", f"/{server.word}x/", f"/{server.word}/../x"):
        answer, body = asked(server, path, Host=here)
        assert (answer.status, body) == (404, b""), path
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", "", f"{here}.x"):
        answer, body = asked(server, f"/{server.word}/data", Host=host)
        assert (answer.status, body) == (404, b""), host
    assert asked(server, f"/{server.word}/", Host=here)[0].status == 200
    assert asked(server, f"/{server.word}/", Host=f"localhost:{server.server_port}")[0].status == 200


def test_nothing_but_reading_is_answered(server, folders):
    before = (folders / "a" / "log.jsonl").read_bytes()
    for method in ("HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert asked(server, f"/{server.word}/data", method)[0].status == 501
    assert asked(server, f"/{server.word}/log.jsonl")[0].status == 404
    assert asked(server, f"/{server.word}/data?low=x")[0].status == 400
    assert (folders / "a" / "log.jsonl").read_bytes() == before


def test_headers_allow_the_own_script_and_the_own_server(server):
    answer, body = asked(server, f"/{server.word}/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "script-src 'sha256-" in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"
    assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in body


def test_what_was_seen_is_not_sent_again(server, folders):
    _, body = asked(server, f"/{server.word}/data?parts=Loss")
    version = json.loads(body)["version"]
    assert asked(server, f"/{server.word}/data?parts=Loss&seen={version}")[0].status == 204
    writer = LogWriter(folders / "a")
    writer.write("step", logs.record(100, 3).to_json())
    writer.close()
    answer, body = asked(server, f"/{server.word}/data?parts=Loss&seen={version}")
    assert answer.status == 200
    assert json.loads(body)["runs"][0]["state"].startswith("Step 100.")


def test_losses_of_validation_stand_beside_those_of_training_and_nan_is_told(tmp_path):
    writer = LogWriter(tmp_path / "a")
    logs.begin(writer, 2)
    for step, loss in ((0, 1.0), (10, 0.5), (20, math.nan), (30, math.nan)):
        writer.write("step", replace(logs.record(step, 2), loss=loss, metrics={}).to_json())
        writer.write("metrics", {"step": step, "metrics": {"val_loss": 1.0 + step, "accuracy": 0.5}})
    writer.close()
    data = live_data([Followed(tmp_path / "a")], ["a"], ["Loss"], -math.inf, math.inf)
    loss, accuracy = data["charts"]
    assert [curve["name"] for curve in loss["curves"]] == ["training loss", "val_loss"]
    assert [value for _, value in loss["curves"][0]["points"]] == [1.0, 0.5, "NaN", "NaN"]
    assert [curve["name"] for curve in accuracy["curves"]] == ["accuracy"]
    tiles = {name: (value, note) for name, value, note in data["runs"][0]["figures"]}
    assert tiles["Loss"][0] == "nan"
    assert tiles["val_loss"] == ("31", "best 1 at step 0")
    assert data["runs"][0]["age"] >= 0
    assert to_html(run_document(ns.Run(tmp_path / "a"))).count(">NaN</text>") == 2  # the wide and the narrow chart


# ---- the log, read on


def test_lines_that_are_not_whole_wait_and_a_log_that_begins_anew_is_read_anew(tmp_path):
    logs.write(tmp_path, steps=30, ended=False, findings=())
    followed = Followed(tmp_path)
    assert [record.step for record in followed.run.records] == [0, 10, 20]
    file = tmp_path / "log.jsonl"
    raw = b'{"type":"step",' + logs.record(30, 3).text()[1:].encode() + b"\n"
    with file.open("ab") as log:
        log.write(raw[:50])
    followed.refresh()
    assert len(followed.run.records) == 3
    with file.open("ab") as log:
        log.write(raw[50:])
    followed.refresh()
    assert [record.step for record in followed.run.records] == [0, 10, 20, 30]
    file.unlink()
    logs.write(tmp_path, steps=20, ended=True, findings=())
    followed.refresh()
    assert [record.step for record in followed.run.records] == [0, 10]
    assert followed.run.ended is not None


def test_a_damaged_log_is_told_and_the_rest_stays(tmp_path):
    logs.write(tmp_path, steps=30, ended=False)
    followed = Followed(tmp_path)
    before = followed.version
    with (tmp_path / "log.jsonl").open("ab") as log:
        log.write(b"no json\n")
    followed.refresh()
    followed.refresh()
    assert followed.version == before + 1
    assert "no JSON" in live_data([followed], ["a"], ["Loss"], 0, 1e9)["runs"][0]["state"]
    assert len(followed.run.records) == 3


def test_nothing_that_a_log_says_is_hidden_in_the_data(tmp_path):
    text = "a\u202eb\x1b[31m\u200bc"
    alarm = Finding(code="x", severity=Severity.WARNING, where=text, seen=text, why="", advice="", step=10)
    logs.write(tmp_path / "h", name=text + "{}", findings=(alarm,), model=text)
    data = live_data([Followed(tmp_path / "h")], [text], ["Loss", "Weights", "Normalizers"], 0, 1e9)
    assert data["charts"]
    whole = json.dumps(data, ensure_ascii=False)
    assert not {"\u202e", "\x1b", "\u200b"} & set(whole)
    assert "\\u001b" not in whole


# ---- the page


@pytest.fixture(scope="module")
def chromium():
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(chromium, server):
    chromium.open(server.address)
    chromium.until("document.querySelectorAll('figure[data-chart=loss] .curve').length == 2")
    yield chromium
    assert chromium.errors == []
    assert chromium.dialogs == []
    assert all(url.startswith(server.address) for url in chromium.requests)


@pytest.mark.browser
def test_the_page_updates_itself_while_the_run_goes_on(page, folders):
    before = page.evaluate(POINTS)
    assert [run for run, _ in before] == ["0", "1"]
    writer = LogWriter(folders / "a")
    writer.write("step", logs.record(400, 3).to_json())
    alarm = Finding(
        code="loss-spike",
        severity=Severity.ERROR,
        where="all",
        seen="It jumped.",
        why="",
        advice="What to do.",
        step=400,
    )
    writer.write("finding", alarm.to_json())
    writer.close()
    page.until("document.querySelector('#runs').textContent.includes('Step 400.')")
    assert page.evaluate(POINTS) != before
    # The page may have read the log between the two lines: the alarm can come one reading later than its step.
    page.until("document.querySelectorAll('figure[data-chart=loss] .happened').length == 2")
    assert "It jumped." in page.evaluate("document.querySelector('#alarms').textContent")
    assert page.evaluate("document.querySelector('#state').textContent").startswith("live, last written")
    assert "What to do." in page.evaluate("document.querySelector('#alarms').textContent")


@pytest.mark.browser
def test_smoothing_runs_layers_and_zoom(page):
    before = page.evaluate(POINTS)
    page.evaluate(
        "(() => { const s = document.getElementById('smoothing'); s.value = 0.9;"
        "s.dispatchEvent(new Event('input')); })()"
    )
    assert page.evaluate(POINTS) != before
    page.click("#runs li:nth-child(2) input")
    assert [run for run, _ in page.evaluate(POINTS)] == ["0"]
    page.evaluate("document.querySelector('details[data-part=Weights] summary').click()")
    page.until("document.querySelectorAll('figure[data-chart=weight-log10_norm] .curve').length == 3")
    page.click("#layers")
    page.write("blocks.1")
    page.until("document.querySelectorAll('figure[data-chart=weight-log10_norm] .curve').length == 1")
    # a drag over the middle half of the picture
    box = page.evaluate(
        "(() => { const e = document.querySelector('figure[data-chart=loss] svg');"
        "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
        "return [b.x, b.y, b.width, b.height]; })()"
    )
    page.drag([box[0] + box[2] * 0.3, box[1] + box[3] / 2], [box[0] + box[2] * 0.7, box[1] + box[3] / 2])
    low, high = (float(page.evaluate(f"document.getElementById('{side}').value")) for side in ("low", "high"))
    assert 15 <= low <= 30
    assert 55 <= high <= 75
    page.click("#reset")
    assert page.evaluate("document.getElementById('low').value") == ""


@pytest.mark.browser
def test_a_server_that_goes_is_told_and_names_stay_text(chromium, tmp_path):
    text = " ".join(HOSTILE)
    alarm = Finding(code="x", severity=Severity.WARNING, where=text, seen=text, why=text, advice=text, step=10)
    name = text.replace("{", "").replace("}", "") + "{}"
    logs.write(tmp_path / "h", name=name, findings=(alarm,), model=text)
    with LiveServer([Followed(tmp_path / "h")], [text]) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        chromium.open(served.address)
        chromium.until("document.querySelectorAll('#alarms .notice').length == 1")
        chromium.evaluate(
            "document.querySelector('details[data-part=Weights] summary').click()"
        )  # it may move meanwhile
        chromium.until("document.querySelectorAll('figure[data-chart=weight-log10_norm] .curve').length == 3")
        assert chromium.evaluate("document.querySelectorAll('#content img, #content script, #content b b').length") == 0
        assert chromium.errors == []
        served.shutdown()
        thread.join()
    chromium.until("document.querySelector('#state').className == 'lost'")
    assert chromium.dialogs == []
