"""Dossiers: a folder of all that there is to show of results, for readers, papers and slides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dyneval import figures, page, results, storage, tables
from dyneval.results import Result

PAGE = "report.html"


def load(paths: Iterable[Path | str]) -> dict[str, Result]:
    """Return results by their names: those of files, and of every result in a folder."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                file for file in path.rglob("*.json") if file.with_suffix(".npz").exists()
            )
            if not inside:
                raise ValueError(f"{path} holds no result; give what `evaluate --save` wrote")
            files += inside
        else:
            files.append(path)
    stems = [file.stem for file in files]
    return {
        file.stem if stems.count(file.stem) == 1 else file.with_suffix("").as_posix(): results.load(
            file
        )
        for file in files
    }


def check(folder: Path) -> None:
    """Raise an error if a dossier cannot be written there, before anybody works for it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder")
    storage.check_writable(folder / PAGE)


def write(found: Mapping[str, Result], folder: Path) -> Path:
    """Write the page, the tables and the figures of results -> the page's path."""
    check(folder)
    page.write(found, folder / PAGE)
    for name, text in (("table.md", tables.markdown(found)), ("table.tex", tables.latex(found))):
        with storage.replacing(folder / name) as temporary:
            temporary.write_text(text, "utf-8", newline="\n")
    for name, result in found.items():
        prefix = f"{name.strip('/').replace('/', '-')}-" if len(found) > 1 else ""
        figures.draw(result, folder / "figures", prefix)
    return folder / PAGE
