"""`accelctl config`: what stands in for options that are not typed, where it is from, and profiles of chips.

The command line stands above the environment (ACCELCTL_PROBE_FAIL_ON=warn: ACCELCTL_, the command, the option), that
above accelctl.toml in the current folder, that above accelctl/config.toml in $XDG_CONFIG_HOME (or ~/.config). In a
file, options stand below their command, by their long names:

\b
  [probe]
  fail-on = "warn"
  device = ["vendor=amd", "driver=xe"]

Some options only count when they are typed: accelctl config show --help.
"""

from typing import Annotated

import typer

EXAMPLES = {
    "show": (
        ("accelctl config", "all commands; a mistake in any file or variable is told"),
        ("accelctl config show probe --origin", "one command, with every layer that has a value"),
        ("ACCELCTL_PROBE_FAIL_ON=warn accelctl config show probe", "a variable is ACCELCTL_COMMAND_OPTION"),
        ("accelctl config show --json", "for programs"),
    ),
    "profile": (
        ("accelctl config profile sim:0", "what profiles switch off and limit for a device"),
        ("accelctl config profile", "for every device that computes here"),
        ("accelctl config profile --keys", "what a profile may say"),
    ),
}
DEFAULT = "show"
Json = Annotated[bool, typer.Option("--json", help="one JSON document, schema accelctl.config/1")]
ProfileJson = Annotated[bool, typer.Option("--json", help="one JSON document, schema accelctl.profile/1")]


def show(
    ctx: typer.Context,
    command: Annotated[str | None, typer.Argument(help="only this command", metavar="COMMAND")] = None,
    origin: Annotated[bool, typer.Option("--origin", help="every layer that has a value, and profiles")] = False,
    as_json: Json = False,
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
    from accelctl.accept import profiles
    from accelctl.commands import frame, settings
    from accelctl.errors import UsageError
    from accelctl.model import profile
    from accelctl.model.configtext import near
    from accelctl.render import document, term
    from accelctl.render.settings import origins_text, settings_document, settings_text

    setup, layers = ctx.find_root().obj, settings.layers_of(ctx)
    if command is not None and command not in setup.commands:
        raise UsageError(f"no such command: {command}{near(command, setup.commands)}", "accelctl config")
    read = profile.read(layers.tables)
    profiles.check(read)
    found = []
    for name in [command] if command is not None else setup.commands:
        row = setup.commands[name]
        loaded = frame.load(name, row.module, row.function, row.summary)
        context = loaded.context_class(loaded, info_name=name)
        for one in getattr(loaded, "commands", {}).values() or [loaded]:
            found += [new for new in settings.chains(one, context, layers).values() if new not in found]
    chosen = [chain[0] for chain in found]
    if as_json:
        chains, chips = (found, profiles.of_chips(read)) if origin else (None, ())
        term.emit(document.dumps(settings_document(layers.files, chosen, chains, read if origin else (), chips)))
    elif origin:
        term.emit(origins_text(layers.files, found, read, profiles.of_chips(read), term.current()))
    else:
        term.emit(settings_text(layers.files, chosen, term.current()))


def profile_of(
    ctx: typer.Context,
    device: Annotated[str | None, typer.Argument(help="as sim:0, opencl:0", metavar="DEVICE")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="what a profile may say")] = False,
    as_json: ProfileJson = False,
) -> None:
    """Show which profiles apply to a device, and each of their values with its origin.

    A profile switches ops and kernels off for a model of chip, and limits what a service gives its clients. It stands
    in the same files as options do:

    \b
      [profile.sim]
      ops.off = ["attention_*"]
      memory.fraction = 0.5
    """
    from accelctl.accept import profiles
    from accelctl.commands import settings
    from accelctl.model import profile
    from accelctl.render import document, notes, term
    from accelctl.render.settings import keys_text, profile_document, profile_text

    if keys:
        term.emit(keys_text())
        return
    layers = settings.layers_of(ctx)
    read = profile.read(layers.tables)
    profiles.check(read)
    found, problems = profiles.of_every_device(read) if device is None else ([profiles.of_device(read, device)], [])
    for line in problems:
        notes.warn(line)
    if as_json:
        term.emit(document.dumps(profile_document(layers.files, found)))
    else:
        term.emit(profile_text(layers.files, found, term.current()))


config = {
    "show": (show, "every option, its value when it is not typed, and where that is from"),
    "profile": (profile_of, "what is switched off and limited for a model of chip"),
}
