"""Dossiers: a folder of all that there is to show of results, for readers, papers and slides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dyneval import figures, page, results, storage, tables, timescale_report
from dyneval.page import Shown
from dyneval.results import Result

PAGE = "report.html"


def load(paths: Iterable[Path | str]) -> dict[str, Shown]:
    """Return results by their names: those of files, and of every result in a folder.

    A file is one of `evaluate --save` or of `timescales --save`.
    """
    files: list[tuple[str, Path]] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                file for file in path.rglob("*.json") if file.with_suffix(".npz").exists()
            )
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
    value = storage.read_json(file)
    if isinstance(value, dict) and isinstance(value.get("buckets"), list):
        return value
    return results.load(file)


def check(folder: Path) -> None:
    """Raise an error if a dossier cannot be written there, before anybody works for it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder")
    storage.check_writable(folder / PAGE)


def write(found: Mapping[str, Shown], folder: Path) -> Path:
    """Write the page, the tables and the figures of results -> the page's path."""
    check(folder)
    page.write(found, folder / PAGE)
    whole = {name: result for name, result in found.items() if isinstance(result, Result)}
    files = {"table.md": tables.markdown(whole), "table.tex": tables.latex(whole)}
    for name, text in files.items() if whole else ():
        with storage.replacing(folder / name) as temporary:
            temporary.write_text(text, "utf-8", newline="\n")
    for name, result in found.items():
        prefix = f"{name.strip('/').replace('/', '-')}-" if len(found) > 1 else ""
        if isinstance(result, Result):
            figures.draw(result, folder / "figures", prefix)
            continue
        for ending in figures.ENDINGS:
            path = folder / "figures" / f"{prefix}timescales{ending}"
            timescale_report.figure(dict(result), path)
    return folder / PAGE
