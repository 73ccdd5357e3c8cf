"""Values of options that were not typed: from a file or the environment to what Click makes of a typed one."""

from __future__ import annotations

from typing import Any

from accelctl.errors import UsageError
from accelctl.model.setting import Value


def from_file(option: Any, ctx: Any, value: Any, where: str) -> Value:
    """The value of a file as this option takes it. UsageError names the place."""
    from accelctl.model.configtext import FLAG, NUMBER, TEXT, WHOLE, value_for

    name = option.type.name
    kind = FLAG if option.is_flag else WHOLE if name.startswith("int") else NUMBER if name.startswith("float") else TEXT
    return cast(option, ctx, value_for(kind, -1 if option.multiple else option.nargs, value, where), where)


def cast(option: Any, ctx: Any, value: Any, where: str) -> Value:
    """Click's own conversion; its error names the place instead of an option that nobody typed."""
    try:
        return plain(option.type_cast_value(ctx, value))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise UsageError(f"{where}: {getattr(error, 'message', error)}") from None


def plain(value: Any) -> Value:
    """As TOML and JSON hold it."""
    if isinstance(value, (list, tuple)):
        return [str(plain(one)) for one in value]
    value = getattr(value, "value", value)  # of an Enum
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
