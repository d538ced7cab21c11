import io
import sys

import pytest

from dyneval.progress import bars


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
