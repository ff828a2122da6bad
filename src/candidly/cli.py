"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from candidly import __version__

app = typer.Typer(
    name="candidly",
    help="Learn from candidate labels, even when the truth is not among them.",
    epilog="Start with: candidly demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _examples(*commands: str) -> str:
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"candidly {__version__}")
        raise typer.Exit


@app.callback()
def candidly(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Learn from candidate labels, even when the truth is not among them."""


Tau = Annotated[
    tuple[float, float],
    typer.Option(metavar="TAU1 TAU2", help="Closed share, and open share, of the known examples."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the method; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]


@app.command(
    epilog=_examples(
        "candidly demo",
        "candidly demo --q 0.5 --tau 0.3 0.6 --seed 1 --out hard",
        "candidly demo --set alpha=0.5 --also crdpll",
    )
)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; replaced if it exists.")] = Path("candidly-demo"),
    q: Annotated[float, typer.Option(help="Probability that a wrong label joins a candidate set.")] = 0.1,
    tau: Tau = (0.2, 0.4),
    seed: Annotated[int, typer.Option(help="Decides the data and the training.")] = 0,
    epochs: Annotated[int, typer.Option(help="Length of each training.")] = 60,
    settings: Settings = None,
    also: Annotated[
        list[str] | None, typer.Option(metavar="METHOD", help="Another method to train; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """See the method at work on handwritten digits: 0-5 are known, 6-9 belong to no class. Takes under a minute."""
    from candidly.demo import render, run_demo

    results = run_demo(
        out, q=q, tau1=tau[0], tau2=tau[1], seed=seed, epochs=epochs, settings=settings or [], also=also or []
    )
    typer.echo(json.dumps(results, indent=2) if as_json else render(results))


@app.command(epilog=_examples("candidly methods", "candidly methods pico", "candidly methods --json"))
def methods(
    name: Annotated[str | None, typer.Argument(help="Only this method, with its whole description.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods with their settings and defaults, as `--set name=value` takes them."""
    from candidly.methods.listing import describe, listing

    found = describe(name)
    typer.echo(json.dumps(found, indent=2) if as_json else listing(found, whole=name is not None))
