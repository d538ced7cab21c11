"""Appendix: 300 characters that are written after 10,000 of Spanish.

The model was trained on English; static it falls back into that, and dynamic it does not.
"""

from pathlib import Path

from dyneval.experiments import load, miniature
from dyneval.published import Published
from dyneval.stages import Sample

figure = "bits per character"
published = (
    Published(
        "300 characters after 10,000 of Spanish",
        fact="the static model falls back into English, the dynamic one stays like Spanish",
    ),
)

# models and settings are those of Table 3
TABLE_3 = load(Path(__file__).with_name("hutter.py"))


def spanish(study):
    """Return samples after Spanish."""
    return (Sample("Spanish", study, "rms+rms-decay", "europarl-es", "test"),)


desk = spanish(TABLE_3.runs["desk"][0])
runs = {
    "paper": spanish(TABLE_3.runs["paper"][0]),
    "desk": desk,
    "miniature": miniature(desk),
}
