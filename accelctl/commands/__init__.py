"""One file per command: parse, call, render; at most 150 lines, no logic.

A command is a typer-style function, named in the table of accelctl.cli. What the frame (frame.py) gives to it:

* The docstring is the help text, `rich_help_panel` on an option is its heading in `--help`.
* `EXAMPLES = (("accelctl probe --brief", "one line per device"), ...)` in the module is shown first in `--help`, and in
  the man page.
* The returned integer (accelctl.exits.ExitCode) is the exit status; None is 0.
* AccelError raised anywhere becomes one line on stderr and its exit status; nothing else needs catching.
* Every option can come from the environment and from files too (settings.py), under its long name, without code in the
  command. One that can cost something, or that asks for something else, is entered in settings.DANGEROUS or ASKING.
* `--debug`, `--ascii`, `--color WHEN`, `--no-config` belong to accelctl itself and never reach the command.
* `metavar` FILE, DIR, TAR, PATH (or a combination such as "DIR|TAR"), or a pathlib.Path annotation, makes completion
  offer files; an Enum or Literal annotation makes it offer its values.
* At the top a command imports typer, the standard library and model/; heavy things inside the function.
"""
