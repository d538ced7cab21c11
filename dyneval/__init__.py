"""Dynamic evaluation: language models that learn from what they have just read."""

__version__ = "0.1.0"
