"""The `penstock` command.

main         commands and exit codes
config_tree  the configuration's leaves: names, ranges, checks
flags        flags made of the tree, and the tree made of flags and a file
table        the README's reference table
serve        `penstock serve`
processes    the commands that are one process of the system
"""
