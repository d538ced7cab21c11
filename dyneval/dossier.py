"""Dossiers: a folder of all that there is to show of results, for readers, papers and slides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dyneval import (
    experiment_report,
    figures,
    page,
    results,
    storage,
    tables,
    timescale_report,
)
from dyneval.results import Result
from dyneval.views import Shown

PAGE = "report.html"


def load(paths: Iterable[Path | str]) -> dict[str, Shown]:
    """Return results by their names: those of files, and of every result in a folder.

    A file is one of `evaluate --save`, `timescales --save` or `experiment --save`.
    """
    files: list[tuple[str, Path]] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*.json") if _is_result(file))
            if not inside:
                raise ValueError(f"{path} holds no result; give what `evaluate --save` wrote")
            files += [(_name(file.relative_to(path)), file) for file in inside]
        else:
            files.append((path.stem, path))
    names = [name for name, _ in files]
    alone = {name for name in names if names.count(name) == 1}
    return {name if name in alone else _name(file): _load(file) for name, file in files}


def _name(path: Path) -> str:
    return path.with_suffix("").as_posix()


def _load(file: Path) -> Shown:
    value: Any = storage.read_json(file)
    if isinstance(value, dict) and isinstance(value.get("buckets"), list):
        return value
    if not _is_experiment(value):
        return results.load(file)
    found: Mapping[str, Any] = value
    try:
        experiment_report.markdown(found)
    except results.UNREADABLE as error:
        message = f"{file} is no whole result of `experiment --save`: {error!r}"
        raise ValueError(message) from None
    return found


def _is_result(file: Path) -> bool:
    """Tell whether a file of a folder is one to report; others lie beside them."""
    if file.with_suffix(".npz").exists():
        return True
    try:
        return _is_experiment(storage.read_json(file))
    except ValueError:  # no JSON at all
        return False


def _is_experiment(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= {"figure", "studies", "curves", "samples"}


def check(folder: Path) -> None:
    """Raise an error if a dossier cannot be written there, before anybody works for it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder")
    storage.check_writable(folder / PAGE)


def write(found: Mapping[str, Shown], folder: Path) -> Path:
    """Write the page, the tables and the figures of results -> the page's path."""
    check(folder)
    page.write(found, folder / PAGE)
    texts = {"table.md": tables.markdown(found), "table.tex": tables.latex(found)}
    for name, text in texts.items():
        with storage.replacing(folder / name) as temporary:
            temporary.write_text(text, "utf-8", newline="\n")
    for name, one in found.items():
        prefix = f"{name.strip('/').replace('/', '-')}-" if len(found) > 1 else ""
        if isinstance(one, Result) or "studies" in one:
            figures.draw(one, folder / "figures", prefix)
        if not isinstance(one, Result):
            _draw_curves(one, folder / "figures", prefix)
    return folder / PAGE


def _draw_curves(one: Mapping[str, Any], folder: Path, prefix: str) -> None:
    """Write the figures of many sequences, or of all those of an experiment."""
    curves = {"": one} if "buckets" in one else one["curves"]
    for name, curve in curves.items():
        for ending in figures.ENDINGS:
            path = folder / f"{prefix}timescales{ending}"
            if name:
                path = experiment_report.figure_of(path, name)
            timescale_report.figure(dict(curve), path)
