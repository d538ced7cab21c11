import io
import json
import sys
import time

import pytest

from dyneval import corpora
from dyneval.progress import bars, logs


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """What tells rich to take a pipe for a terminal, or the other way round, is not set."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def drawn(quiet=False):
    with bars("tokens", quiet=quiet) as update:
        update("static", 0, 100, "perplexity 90.0")
        update("static", 100, 100, "perplexity 80.0")
        update("dynamic", 10, 100, "perplexity 70.0")


def test_a_terminal_shows_each_piece_of_work(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    drawn()
    text = sys.stderr.getvalue()
    for part in ("static", "100%", "perplexity 80.0", "dynamic", "10%", "perplexity 70.0"):
        assert part in text


def test_a_terminal_shows_the_pace(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bars("tokens") as update:
        for done in range(0, 2001, 500):
            update("static", done, 2000, "")
    assert "tokens/s" in sys.stderr.getvalue()


def test_a_download_has_a_bar_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bars("tokens"):
        report = corpora._reported.get()
        for done in range(0, 2_000_001, 500_000):
            report("text8.zip", done, 2_000_000)
        report("no-size.txt", 1000, 0)
    assert corpora._reported.get() is None
    text = sys.stderr.getvalue()
    for part in ("download of text8.zip", "100%", "kB/s", "download of no-size.txt"):
        assert part in text
    assert "tokens/s" not in text


def test_a_pipe_stays_clean(capsys):
    drawn()
    assert capsys.readouterr() == ("", "")


def test_a_quiet_terminal_stays_clean(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Terminal())
    drawn(quiet=True)
    assert sys.stderr.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_nothing_goes_to_standard_output(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Terminal())
    drawn()
    assert capsys.readouterr().out == ""


def test_a_name_is_shown_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bars("tokens") as update:
        update("[red]row", 1, 2, "[b]3")
    assert "[red]row" in sys.stderr.getvalue()


def test_an_error_ends_the_bar_and_is_handed_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())

    def fail():
        with bars("tokens") as update:
            update("static", 1, 2, "")
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    assert sys.stderr.getvalue().endswith("\x1b[?25h")  # the cursor is shown again


# Logs


def noted(lines=None, tensorboard=None):
    with logs(lines, tensorboard) as note:
        note("static", 100, {"bits_per_token": 2.5, "seconds": 1.0})
        note("static", 200, {"bits_per_token": 2.25, "seconds": 2.0})
        note("dynamic", 100, {"bits_per_token": 2.0})
        note("lost", 100, {"bits_per_token": float("nan")})


def test_lines_of_json(tmp_path):
    path = tmp_path / "below" / "log.jsonl"
    began = time.time()
    noted(path)
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert all(began <= row.pop("time") <= time.time() for row in rows)
    assert rows == [
        {"what": "static", "step": 100, "bits_per_token": 2.5, "seconds": 1.0},
        {"what": "static", "step": 200, "bits_per_token": 2.25, "seconds": 2.0},
        {"what": "dynamic", "step": 100, "bits_per_token": 2.0},
        {"what": "lost", "step": 100, "bits_per_token": None},
    ]
    noted(path)  # of a run that goes on
    assert len(path.read_text("utf-8").splitlines()) == 8


def test_a_line_is_there_at_once(tmp_path):
    path = tmp_path / "log.jsonl"
    with logs(path, None) as note:
        note("static", 1, {"bits_per_token": 2.5})
        assert json.loads(path.read_text("utf-8"))["step"] == 1


def test_tensorboard_reads_what_was_noted(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    noted(None, tmp_path / "events")
    read = EventAccumulator(str(tmp_path / "events"))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {
        "static/bits_per_token",
        "static/seconds",
        "dynamic/bits_per_token",
        "lost/bits_per_token",
    }
    found = [(each.step, each.value) for each in read.Scalars("static/bits_per_token")]
    assert found == [(100, 2.5), (200, 2.25)]


def test_without_logs_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noted()
    assert not list(tmp_path.iterdir())


def test_tensorboard_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install dyneval\[tensorboard\]"):
        noted(None, tmp_path)
