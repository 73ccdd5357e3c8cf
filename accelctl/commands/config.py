"""`accelctl config [COMMAND]`: what stands in for options that are not typed, and where it is from."""

from typing import Annotated

import typer

from accelctl.model.setting import Setting

EXAMPLES = {
    "show": (
        ("accelctl config", "all commands; a mistake in any file or variable is told"),
        ("accelctl config show probe", "one command"),
        ("ACCELCTL_PROBE_FAIL_ON=warn accelctl config show probe", "a variable is ACCELCTL_COMMAND_OPTION"),
        ("accelctl config show --json", "for programs"),
    ),
}
DEFAULT = "show"


def show(
    ctx: typer.Context,
    command: Annotated[str | None, typer.Argument(help="only this command", metavar="COMMAND")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document, schema accelctl.config/1")] = False,
) -> None:
    """Show every option of every command, its value when it is not typed, and where that value is from.

    The command line stands above the environment (ACCELCTL_PROBE_FAIL_ON=warn), that above accelctl.toml in the current
    folder, that above accelctl/config.toml in $XDG_CONFIG_HOME (or ~/.config). In a file, options stand below their
    command, by their long names:

    \b
      [probe]
      fail-on = "warn"
      device = ["vendor=amd", "driver=xe"]
      json = true

    Options that can cost something (--disruptive, --shared, ...) or ask for something else, once (--why, ...), only
    count when they are typed.
    """
    from accelctl.commands import frame, settings
    from accelctl.errors import UsageError
    from accelctl.model.configtext import near
    from accelctl.render import document, term
    from accelctl.render.settings import settings_document, settings_text

    setup, layers = ctx.find_root().obj, settings.layers_of(ctx)
    if command is not None and command not in setup.commands:
        raise UsageError(f"no such command: {command}{near(command, setup.commands)}", "accelctl config")
    found: list[Setting] = []
    for name in [command] if command is not None else setup.commands:
        row = setup.commands[name]
        loaded = frame.load(name, row.module, row.function, row.summary)
        context = loaded.context_class(loaded, info_name=name)
        for one in getattr(loaded, "commands", {}).values() or [loaded]:
            found += [new for new in settings.in_force(one, context, layers).values() if new not in found]
    if as_json:
        term.emit(document.dumps(settings_document(layers.files, found)))
    else:
        term.emit(settings_text(layers.files, found, term.current()))


config = {"show": (show, "every option, its value when it is not typed, and where that is from")}
