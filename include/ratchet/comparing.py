"""The command that holds a spec's columns against the schemas of a registry."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.command import FAULTS, JSON, NAME, endpoints, print_json
from ratchet.printing import print_lines

if TYPE_CHECKING:
    from ratchet.operate.columns import Part


def columns(
    name: Annotated[str, NAME],
    subject: Annotated[
        str | None, typer.Option(help="The subject of the values' schemas.", show_default="TOPIC-value")
    ] = None,
    key_subject: Annotated[
        str | None, typer.Option(help="The subject of the keys' schemas.", show_default="TOPIC-key")
    ] = None,
    since: Annotated[
        int | None, typer.Option(help="New is what this version of the values' subject did not have.", min=1)
    ] = None,
    key_since: Annotated[int | None, typer.Option(help="The same of the keys' subject.", min=1)] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say how a spec's columns differ from the newest schema of its registry; exit 3 where they do.

    New are fields that no column takes, gone are those that a column takes, changed are those that a column's type
    does not hold. Nothing is changed: whether the spec follows is decided by whoever reads it.
    """
    from ratchet.operate.columns import compared, lines_of
    from ratchet.spec.loading import load_pipeline

    spec = load_pipeline(name)
    subjects: dict[Part, str | None] = {"value": subject, "key": key_subject}
    versions: dict[Part, int | None] = {"value": since, "key": key_since}
    found = compared(
        spec,
        endpoints(spec),
        {part: said for part, said in subjects.items() if said is not None},
        {part: number for part, number in versions.items() if number is not None},
    )
    if as_json:
        print_json([{**asdict(each), "said": lines_of(each)} for each in found])
    else:
        print_lines(line for each in found for line in lines_of(each))
    if any(each.drifts for each in found):
        raise typer.Exit(FAULTS)
