"""`raysuite cluster site`: the sites that there are, and a new one."""

from __future__ import annotations

import json as json_text
import sys
from typing import Annotated

import typer

from raysuite.cli.console import print_text, stdout
from raysuite.errors import SpecError, UserError

site = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Describe the machines on which clusters are started.",
)


@site.command()
def new(
    name: Annotated[str, typer.Argument(help="What the site shall be called.")],
    start: Annotated[
        str, typer.Option("--from", metavar="NAME|FILE", help="The site to begin with.")
    ] = "slurm-generic",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of a site; again for others."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="SLURM's partition.")] = None,
    account: Annotated[str | None, typer.Option(help="The account that pays.")] = None,
    image: Annotated[str | None, typer.Option(help="An Apptainer image, as a path.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    force: Annotated[bool, typer.Option(help="Replace a site of your own.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, write nothing.")] = False,
) -> None:
    """Write a site of your own to $RAYSUITE_HOME/sites (~/.raysuite/sites), and show it.

    Asks for the keys that differ most; the others are --set, or an editor on the file.

    \b
    Examples:
      raysuite cluster site new mysite
      raysuite cluster site new mysite --yes --partition gpu --account physics \\
        --set gpus_per_node=4 --set time=12:00:00
      raysuite cluster site new mybooster --from juwels-booster --account myproject
    """
    import yaml

    from raysuite.cli.cluster.site_questions import ask_all
    from raysuite.cluster.sites import own_sites, site_file
    from raysuite.spec.reading import read_document
    from raysuite.spec.site_file import site_of

    file = own_sites() / f"{name}.yaml"
    if file.exists() and not force:
        raise UserError(f"{file} is there already; edit it, take another name, or give --force")
    document = read_document(site_file(start), settings or [])
    document.overrides["name"] = name
    options = {"partition": partition, "account": account, "image": image}
    document.overrides.update({key: value for key, value in options.items() if value is not None})
    keys = {**document.data, "description": f"Begun from {start}.", **document.overrides}
    if not yes and sys.stdin.isatty():
        answers = ask_all(str(keys.get("kind")), keys)
        document.overrides.update(answers)
        keys.update(answers)
    document.data = {key: value for key, value in keys.items() if value is not None}
    site_of(document, name)
    text = f"# Written by `raysuite cluster site new {name}`; docs/sites.md explains every key.\n"
    text += yaml.safe_dump(document.data, sort_keys=False, allow_unicode=True, width=100)
    if not dry_run:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = file.with_name(f".{file.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)
        print_text(f"wrote {file}; next: raysuite cluster doctor --site {name}", error=True)
    print_text(text.rstrip("\n"))


@site.command("list")
def list_sites(
    json: Annotated[bool, typer.Option("--json", help="Print the sites as JSON.")] = False,
) -> None:
    """Every site that `--site` takes by its name: your own, and those that come along.

    \b
    Examples:
      raysuite cluster site list
      raysuite cluster site list --json | jq -r '.[].name'
    """
    from raysuite.cluster.sites import find_site, site_files

    rows = []
    for name, file in site_files().items():
        try:
            found = find_site(name)
            row = {"kind": found.kind, "description": found.description, "ok": True}
        except SpecError as error:
            count = len(error.mistakes)
            words = f"{count} mistake{'s' * (count > 1)}; `raysuite cluster site show {name}`"
            row = {"kind": "?", "description": words, "ok": False}
        rows.append({"name": name, **row, "file": str(file)})
    if json:
        print_text(json_text.dumps(rows, indent=2))
        return
    from rich.table import Table  # here: --help needs none
    from rich.text import Text

    table = Table()
    for heading in ("name", "kind", "description", "file"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(row[key])) for key in ("name", "kind", "description", "file")))
    stdout().print(table)


@site.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A site's name, or its file.")],
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Every key of a site, defaults included.

    \b
    Examples:
      raysuite cluster site show juwels-booster
      raysuite cluster site show ./mysite.yaml --json
    """
    import yaml

    from raysuite.cluster.sites import find_site, site_file

    values = find_site(name).model_dump(mode="json")
    if json:
        print_text(json_text.dumps(values, indent=2))
        return
    print_text(f"# {site_file(name)}")
    print_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100).rstrip())
