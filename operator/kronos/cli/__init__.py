"""`kubectl kronos`: questions that people ask about jobs, answered in a terminal.

Each command is a module of its own that only reads and writes; what it says comes from pure functions beside it, and from
the packages that decide. `__main__` lists the commands.
"""
