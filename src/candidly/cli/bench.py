"""Commands around the paper: demo, methods, data and bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from candidly.cli import heap
from candidly.cli.options import Device, Json, examples
from candidly.console.terminal import echo, echo_json
from candidly.errors import require_modules

bench_commands = typer.Typer()


# ---- demo and methods


@bench_commands.command(
    short_help="See the method at work on handwritten digits.",
    epilog=examples(
        "candidly demo",
        "candidly demo --q 0.5 --tau 0.3 0.6 --seed 1 --out hard",
        "candidly demo --set alpha=0.5 --also crdpll --set crdpll.augmentation=own",
    ),
)
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the results; replaced if it exists.")
    ] = Path("candidly-demo"),
    q: Annotated[
        float, typer.Option(help="Probability that a wrong label joins a candidate set.")
    ] = 0.1,
    tau: Annotated[
        tuple[float, float],
        typer.Option(
            metavar="TAU1 TAU2", help="Closed and open examples, as shares of the known ones."
        ),
    ] = (0.2, 0.4),
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the data and the training.")
    ] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Length of each training.")] = 60,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of ooc, or METHOD.NAME=VALUE; repeatable.",
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="Another method to train; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """See the method at work on handwritten digits: 0-5 are known, 6-9 belong to no class.

    It takes less than a minute.
    """
    require_modules("candidly demo", "torch", "safetensors", "matplotlib", extra="bench")
    from candidly.bench.demo import demo_text, run_demo

    with heap.keeping_freed_memory():
        results = run_demo(
            out,
            q=q,
            tau1=tau[0],
            tau2=tau[1],
            seed=seed,
            epochs=epochs,
            settings=settings or [],
            also=also or [],
        )
    echo_json(results) if as_json else echo(demo_text(results))


@bench_commands.command(
    short_help="List the methods and their settings.",
    epilog=examples("candidly methods", "candidly methods pico", "candidly methods --json"),
)
def methods(
    name: Annotated[
        str | None, typer.Argument(help="Only this method, with its whole description.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods with their settings and defaults, as `--set name=value` takes them."""
    from candidly.methods.listing import as_text, describe

    found = describe(name)
    echo_json(found) if as_json else echo(as_text(found, whole=name is not None))


# ---- data

data_commands = typer.Typer(
    no_args_is_help=True, help="Image sets: which there are, and how to get them."
)
bench_commands.add_typer(data_commands, name="data")

DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder of the image sets; by default the variable CANDIDLY_DATA."
    ),
]


@data_commands.command(
    epilog=examples(
        "candidly data fetch cifar10 --data-dir ~/data",
        "CANDIDLY_DATA=~/data candidly data fetch fashion-mnist",
    )
)
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="An image set, as `candidly data list` names it.")
    ],
    data_dir: DataDir = None,
    mirror: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Folder of a server that has the same official files."),
    ] = None,
) -> None:
    """Download an image set, verify it and unpack it.

    An interrupted download starts again from the beginning.
    """
    from candidly.bench.sources.fetch import fetch_set

    echo(fetch_set(name, data_dir, mirror))


@data_commands.command(
    "list", epilog=examples("candidly data list", "candidly data list --data-dir ~/data --json")
)
def list_sets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the image sets, which parts of them are there, and their official pages."""
    from candidly.bench.sources.catalogue import survey, survey_text

    echo_json(survey(data_dir)) if as_json else echo(survey_text(data_dir))


# ---- bench

table_commands = typer.Typer(
    no_args_is_help=True,
    short_help="The paper's tables and figures.",
    help="The paper's tables and figures: `run` trains what is missing, `show` and `figure` show "
    "what is there.",
)
bench_commands.add_typer(table_commands, name="bench")

Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="table1 (all methods), table2 (ablations), params, rivals (methods for sets that may "
        "miss the truth), candid (it, its parts, and what else is given nothing) or earlier "
        "(table1 with the defaults of before).",
    ),
]
ScaleToRun = Annotated[
    str, typer.Option("--scale", metavar="SCALE", help="`candidly bench scales` lists them.")
]
ScaleToShow = Annotated[
    str | None,
    typer.Option(
        "--scale", metavar="SCALE", help="By default the only scale that there are results of."
    ),
]
Cells = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help='Columns, such as "svhn q=0.1*"; repeatable.'),
]
Rows = Annotated[
    list[str] | None,
    typer.Option("--methods", metavar="PATTERN", help='Rows, such as "ooc*"; repeatable.'),
]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="Number of seeds; by default that of the scale.")
]
OneTau = Annotated[
    tuple[float, float] | None,
    typer.Option("--tau", metavar="TAU1 TAU2", help="This tau instead of the paper's two."),
]
Runs = Annotated[Path, typer.Option("--out", help="Folder of the RUN folders.")]
Results = Annotated[
    Path | None, typer.Option(help="A file written by `bench export`, read as well.")
]


@table_commands.command(
    "run",
    epilog=examples(
        "candidly bench run table1 --scale digits",
        'candidly bench run rivals --scale digits --methods "ALIM*" --methods GCE',
        'candidly bench run table1 --scale mini --cells "svhn*" --methods "ooc*" --dry-run',
    ),
)
def bench_run(
    table: Table,
    scale: ScaleToRun,
    cells: Cells = None,
    methods: Rows = None,
    seeds: Seeds = None,
    tau: OneTau = None,
    data_dir: DataDir = None,
    out: Runs = Path("runs/bench"),
    part: Annotated[
        str, typer.Option(metavar="K/N", help="One of N equal parts of the runs: for a cluster.")
    ] = "1/1",
    retry: Annotated[bool, typer.Option("--retry", help="Try failed runs again.")] = False,
    device: Device = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and estimate the time.")
    ] = False,
) -> None:
    """Train the unfinished runs of a table, and print it.

    Stop it at any time; the same command resumes.
    """
    from candidly.bench import commands
    from candidly.bench.results import load_results

    jobs = commands.jobs(table, scale, cells, methods, seeds, tau, part)
    if dry_run:
        echo(commands.planned(jobs, out, data_dir))
        return
    with heap.keeping_freed_memory():
        done = commands.run(jobs, out, data_dir, retry, device)
    echo(done, err=True)
    if part == "1/1":
        _print_table(jobs, table, load_results(out), out)


@table_commands.command(
    "show", epilog=examples("candidly bench show table1 --scale digits --format latex")
)
def bench_show(
    table: Table,
    scale: ScaleToShow = None,
    cells: Cells = None,
    methods: Rows = None,
    seeds: Seeds = None,
    tau: OneTau = None,
    out: Runs = Path("runs/bench"),
    results: Results = None,
    style: Annotated[str, typer.Option("--format", help="md, csv or latex.")] = "md",
    details: Annotated[
        bool,
        typer.Option("--details", help="In md: precision of the groups, seconds per epoch."),
    ] = False,
) -> None:
    """Print a table: mean and spread over the seeds, the best in bold, and the paper's numbers."""
    from candidly.bench import commands
    from candidly.bench.results import load_results

    found = load_results(out, results)
    chosen = commands.scale_of(scale, found, results or out)
    jobs = commands.jobs(table, chosen, cells, methods, seeds, tau)
    _print_table(jobs, table, found, out, style, details)


def _print_table(
    jobs: Any,
    table: str,
    found: Any,
    out: Path,
    style: str = "md",
    details: bool = False,
) -> None:
    from candidly.bench import commands

    echo(commands.show(jobs, table, found, style, details))
    for note in commands.notes(jobs, table, found, out):
        echo(note, err=True)


@table_commands.command(
    "figure",
    epilog=examples(
        "candidly bench figure precision --scale digits --run --file precision.svg",
        "candidly bench figure losses --results results/features.jsonl --file losses.pdf",
    ),
)
def bench_figure(
    figure: Annotated[
        str, typer.Argument(metavar="FIGURE", help="losses, precision, params or examples.")
    ],
    scale: ScaleToShow = None,
    file: Annotated[
        Path | None, typer.Option(help="The picture: .png, .svg or .pdf; by default FIGURE.png.")
    ] = None,
    open_set: Annotated[
        str | None, typer.Option("--open", help="Where the open examples come from.")
    ] = None,
    data_dir: DataDir = None,
    out: Runs = Path("runs/bench"),
    results: Results = None,
    train: Annotated[
        bool, typer.Option("--run", help="Train the runs that are missing first.")
    ] = False,
) -> None:
    """Draw one of the paper's figures from runs of seed 0; `examples` also needs the images."""
    require_modules("candidly bench figure", "torch", "safetensors", "matplotlib", extra="bench")
    from candidly.bench import commands

    picture = file or Path(f"{figure}.png")
    echo(commands.figure(figure, scale, open_set, out, results, data_dir, picture, train))


@table_commands.command("export", epilog=examples("candidly bench export results/digits.jsonl"))
def bench_export(
    file: Annotated[Path, typer.Argument(help="JSON lines, one line per finished run.")],
    out: Runs = Path("runs/bench"),
) -> None:
    """Write the results of all finished runs into one small file, for `bench show --results`."""
    from candidly.bench.results import export

    echo(export(file, out))


@table_commands.command("scales", epilog=examples("candidly bench scales"))
def bench_scales() -> None:
    """List the scales; times are for one core, with two runs at once on two cores."""
    from candidly.bench.scales import SCALES

    echo("\n".join(f"{scale.name:10} {scale.about}" for scale in SCALES.values()))
