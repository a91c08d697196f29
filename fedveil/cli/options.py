"""Options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

FileArgument = Annotated[str | None, typer.Argument(metavar="[FILE.toml]", help="Config file.", show_default=False)]
SetOption = Annotated[
    list[str] | None, typer.Option("-s", "--set", metavar="KEY=VALUE", help="Set section.key=value; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
