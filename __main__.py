"""`python -m pocketmq`: the command, where its script is not on the path."""

from .tools.cli import main

main()
