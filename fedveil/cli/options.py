"""Options that commands share."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

FileArgument = Annotated[str | None, Argument(metavar="[FILE.toml]", help="Config file.", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    Option(
        "-s",
        "--set",
        metavar="KEY=VALUE",
        help="Set section.key=value; repeatable. defense.name=none replaces the defence of the file.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="One JSON document on stdout.")]
