"""The command line's commands, one file each; `acefl.cli` puts them together.

Nothing here imports torch or pandas before a command is called, so that `acefl --help` and completion stay quick.
"""
