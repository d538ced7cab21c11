"""`python -m dyneval.cli`."""

from dyneval.cli import main

main()
