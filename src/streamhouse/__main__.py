"""`python -m streamhouse` is the `streamhouse` command."""

from streamhouse.cli.main import main

main()
