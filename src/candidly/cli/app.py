"""The command line: parses, calls, prints."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from candidly._version import __version__
from candidly.cli import heap
from candidly.console.terminal import counted, echo, echo_json, printable, printable_lines, say
from candidly.errors import NO_SPACE, CandidlyError, InputError, system_reason

SAFETENSORS_ERROR = re.compile(r"\(os error (\d+)\)$")  # it raises no OSError, as on a full disk
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # click's class, or typer's own copy of it


class Plain(TyperGroup):
    """Print errors that the user can fix as a sentence, without a traceback."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _errors_as_sentences():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _errors_as_sentences():
            _refuse_many_processes()
            return super().invoke(ctx)


@contextmanager
def _errors_as_sentences() -> Iterator[None]:
    try:
        yield
    except USAGE_ERROR as error:  # typer prints it
        error.message = printable_lines(error.message)
        raise
    except InputError as error:  # one line: a newline in it comes from the input
        _stop(printable(error), 2)
    except CandidlyError as error:
        _stop(str(error), 2)
    except OSError as error:
        if error.errno in (None, errno.EPIPE):  # typer ends quietly when a pipe is closed
            raise
        _stop(_system_error(error), 2)
    except Exception as error:
        if (found := SAFETENSORS_ERROR.search(str(error))) is None:
            raise
        number = int(found[1])
        _stop(_system_error(OSError(number, os.strerror(number))), 2)
    except KeyboardInterrupt as stopped:  # `Interrupted` says what was kept
        _stop(str(stopped) or "stopped; the same command starts it again.", 130)


def _stop(message: str, code: int) -> NoReturn:
    echo(f"candidly: {message}", err=True)
    raise typer.Exit(code)


def _system_error(error: OSError) -> str:
    if error.filename is not None:
        return f"{printable(error.filename)} cannot be used: {system_reason(error)}"
    return (
        f"cannot {'write' if error.errno in NO_SPACE else 'read or write'}: {system_reason(error)}"
    )


def _refuse_many_processes() -> None:
    """Stop if this is one of several processes, as of torchrun: a command is the work of one."""
    world = os.environ.get("WORLD_SIZE", "")
    rank = os.environ.get("RANK")
    if rank is None or not world.isdecimal() or int(world) < 2:
        return
    if rank != "0":
        raise typer.Exit(0)  # a failure would make torchrun end the first process before it prints
    _stop(
        f"a command runs as one process, not as {world} (WORLD_SIZE and RANK are set): start it without torchrun, "
        "or unset RANK; to train in many processes, call candidly.fit in your own program.",
        2,
    )


app = typer.Typer(
    name="candidly",
    cls=Plain,
    help="Learn from candidate labels, even when the truth is not among them.",
    epilog="Start with: candidly demo. With your own data: candidly inspect FILE, then candidly fit FILE --out RUN",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _examples(*commands: str) -> str:
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"candidly {__version__}")
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
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of ooc, or METHOD.NAME=VALUE; repeatable."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]


@app.command(
    short_help="See the method at work on handwritten digits.",
    epilog=_examples(
        "candidly demo",
        "candidly demo --q 0.5 --tau 0.3 0.6 --seed 1 --out hard",
        "candidly demo --set alpha=0.5 --also crdpll --set crdpll.ramp=0.5",
    ),
)
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the results; replaced if it exists.")
    ] = Path("candidly-demo"),
    q: Annotated[
        float, typer.Option(help="Probability that a wrong label joins a candidate set.")
    ] = 0.1,
    tau: Tau = (0.2, 0.4),
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Decides the data and the training.")
    ] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Length of each training.")] = 60,
    settings: Settings = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="Another method to train; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """See the method at work on handwritten digits: 0-5 are known, 6-9 belong to no class. Takes under a minute."""
    from candidly.bench.demo import demo_text, run_demo

    with heap.kept():
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


@app.command(
    short_help="List the methods and their settings.",
    epilog=_examples("candidly methods", "candidly methods pico", "candidly methods --json"),
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


def _reader(
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Column of candidates; of several annotators; Label Studio: the tag.",
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that names each example.")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of image files, inside the file's folder."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of text to learn from.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME]", help='Columns of features; "f*" is a pattern.'),
    ] = None,
    classes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="All classes, a name a line, in order.")
    ] = None,
    annotator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of annotators; ids then repeat.")
    ] = None,
    truth: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of true labels, to evaluate.")
    ] = None,
    sep: Annotated[str, typer.Option(help="What stands between the candidates of a cell.")] = "|",
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Most memory a file may take, such as 8GB; otherwise 200 times its size.",
        ),
    ] = None,
) -> None:
    """The options of `read_file`; commands get them by `_reads`."""


Command = Callable[..., None]


def _reads(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of `_reader`, or those of these names; it gets them as one dict, `reader`."""

    def extend(command: Command) -> Command:
        shared = signature(_reader, eval_str=True).parameters
        chosen = {name: shared[name] for name in names or shared}

        @functools.wraps(command)
        def extended(**given: Any) -> None:
            reader = {name: given.pop(name) for name in chosen}
            command(
                **given, reader={k: str(v) if isinstance(v, Path) else v for k, v in reader.items()}
            )

        own = signature(command, eval_str=True).parameters
        given = [
            chosen.values() if name == "reader" else [parameter] for name, parameter in own.items()
        ]
        called = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in itertools.chain(*given)]
        extended.__signature__ = Signature(called)  # type: ignore[attr-defined]
        return extended

    return extend


File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="CSV, TSV, Parquet, Arrow, NPZ, .mat, JSON or a folder."),
]


@app.command(
    short_help="Tell what a file of candidate labels holds.",
    epilog=_examples(
        "candidly inspect photos.csv",
        "candidly inspect reviews.csv --labels ann1,ann2,ann3 --text review --classes classes.txt",
        "candidly inspect export.json --json",
    ),
)
@_reads()
def inspect(file: File, reader: dict[str, Any], as_json: Json = False) -> None:
    """Tell what a file of candidate labels holds, and what is odd about it: nothing is trained or written."""
    from candidly.data import read_file
    from candidly.data.facts import gather, render

    facts = gather(read_file(file, **reader))
    echo_json(facts) if as_json else say(render(facts, reader))


NewRun = Annotated[Path, typer.Option("--out", metavar="RUN", help="New folder for the results.")]
ModelRun = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `fit` wrote.")]
OldRun = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `fit` or `audit` wrote.")]
NewFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="New file to write.")]
NoRows = Annotated[
    bool,
    typer.Option(
        "--no-rows",
        help="Leave rows and names of annotators out of report and findings, to share them; audit.csv, audit.parquet "
        "and run.json are not to be shared.",
    ),
]
PageOnly = Annotated[
    bool,
    typer.Option(
        "--no-rows", help="Leave rows and names of annotators out of the report, to share it."
    ),
]
FailAbove = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        min=0,
        max=1,
        help="Exit code 1 if surely more than this share of the truth lies outside.",
    ),
]
Device = Annotated[
    str, typer.Option(help="Such as cpu or cuda:1; auto takes a GPU if there is one.")
]


def _finish(out: Path, findings: dict[str, Any], as_json: bool, fail_above: float | None) -> None:
    """Tell what was found; with `--fail-above`, in the exit code too."""
    from candidly.cli.summary import render, summary

    if as_json:
        echo_json(summary(out, findings))
    else:
        say(render(out, findings))
    low = findings["shares"]["outside"]["low"]
    if fail_above is not None and low > fail_above:
        told = f"at least {low:.1%} of the rows have their truth outside their candidates, more than {fail_above:.1%}."
        echo(f"candidly: {told}", err=True)
        raise typer.Exit(1)


@app.command(
    short_help="Train on a file, audit its rows, write a report.",
    epilog=_examples(
        "candidly fit photos.csv --out run",
        "candidly fit reviews.csv --labels ann1,ann2,ann3 --text review --out run --fail-above 0.05",
        "candidly fit table.parquet --method proden --epochs 30 --folds 3 --out run --json",
    ),
)
@_reads()
def fit(
    file: File,
    out: NewRun,
    reader: dict[str, Any],
    method: Annotated[str, typer.Option(help="`candidly methods` lists them.")] = "ooc",
    preset: Annotated[
        str, typer.Option(help="Of the method's settings; auto: robust, if there is one.")
    ] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; repeatable."),
    ] = None,
    encoder: Annotated[
        str, typer.Option(help="Of images: lite0, or none for their pixels.")
    ] = "lite0",
    epochs: Annotated[
        str, typer.Option(metavar="N|auto", help="Length of each training.")
    ] = "auto",
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Decides folds and training.")
    ] = 0,
    device: Device = "auto",
    folds: Annotated[
        int, typer.Option(min=2, help="Each row is judged by a net trained on the other folds.")
    ] = 5,
    no_rows: NoRows = False,
    fail_above: FailAbove = None,
    as_json: Json = False,
) -> None:
    """Train a classifier on candidate labels, find the rows whose truth lies outside them, and write a report."""
    from candidly.workspace.jobs import Training, fit_file

    training = Training(
        method, preset, tuple(settings or ()), encoder, _epochs(epochs), seed, device, folds
    )
    with heap.kept():
        found = fit_file(file, out, reader=reader, training=training, rows=not no_rows)
    _finish(out, found, as_json, fail_above)


def _epochs(text: str) -> int | str:
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise typer.BadParameter(f"{text!r} is neither a number nor auto.", param_hint="--epochs")


@app.command(
    short_help="Audit a file by your own model's outputs.",
    epilog=_examples(
        "candidly audit photos.csv --probs probabilities.npy --out run",
        "candidly audit reviews.csv --labels ann1,ann2,ann3 --probs logits.parquet --out run --fail-above 0.05",
    ),
)
@_reads()
def audit(
    file: File,
    probs: Annotated[
        Path,
        typer.Option(
            metavar="P",
            help="Probabilities or logits of your own model: .npy, .npz, CSV, Parquet; a column a class.",
        ),
    ],
    out: NewRun,
    reader: dict[str, Any],
    no_rows: NoRows = False,
    fail_above: FailAbove = None,
    as_json: Json = False,
) -> None:
    """Find the rows whose truth lies outside their candidates by your own model's outputs: nothing is trained.

    The outputs must be for rows that the model was not trained on, such as those of cross-validation.
    """
    from candidly.workspace.jobs import audit_file

    _finish(out, audit_file(file, probs, out, reader=reader, rows=not no_rows), as_json, fail_above)


@app.command(epilog=_examples("candidly report run", "candidly report run --no-rows"))
def report(run: OldRun, no_rows: PageOnly = False, as_json: Json = False) -> None:
    """Write the report of a RUN again. What `--no-rows` left out when the RUN was made stays out."""
    from candidly.workspace.jobs import rebuild

    page = str(rebuild(run, rows=not no_rows))
    echo_json({"run": str(run), "report": page}) if as_json else echo(page)


@app.command(epilog=_examples("candidly predict run new.csv --out predicted.csv --reject 0.05"))
@_reads("id", "images", "text", "features", "max_memory")
def predict(
    run: ModelRun,
    file: File,
    out: NewFile,
    reader: dict[str, Any],
    reject: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0,
            max=1,
            help="Call what looks like no class so; this share of known ones is lost.",
        ),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Classify the rows of a file by the model of a RUN. Inputs are found as in training, unless named.

    Rows of several annotators, if the model was trained on such, are one example for each id.
    """
    from candidly.cli.summary import predicted
    from candidly.workspace.jobs import predict_file

    done = predict_file(run, file, out, reader=reader, reject=reject, device=device)
    echo_json(done) if as_json else echo(predicted(done))


@app.command(
    short_help="Write the input again with corrected sets.",
    epilog=_examples(
        "candidly export run --out corrected.csv",
        "candidly export run --out corrected.json --keep-open",
    ),
)
def export(
    run: OldRun,
    out: NewFile,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="The input, if it has moved since."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="The suggestion takes the place of the candidates instead of joining them.",
        ),
    ] = False,
    keep_open: Annotated[bool, typer.Option("--keep-open", help="Keep rows of no class.")] = False,
    as_json: Json = False,
) -> None:
    """Write the input again with corrected candidate sets, in its own format. The input stays as it is.

    A row judged closed gets the suggested label; a row judged open is left out. Label Studio's tasks get the suggestion
    as a prediction with a score.
    """
    from candidly.workspace.jobs import export_run

    done = export_run(run, out, input_file=input_file, replace=replace, keep_open=keep_open)
    told = f"{out}: {counted(done['rows'], 'row')}, {done['corrected']:,} of them corrected, {done['left_out']:,} left out"
    echo_json(done) if as_json else echo("\n".join([told, *done["notes"]]))


data_app = typer.Typer(
    help="Image sets: which there are, and how to get them.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the image sets; otherwise the variable CANDIDLY_DATA names it.",
    ),
]


@data_app.command(
    epilog=_examples(
        "candidly data fetch cifar10 --data-dir ~/data",
        "CANDIDLY_DATA=~/data candidly data fetch fashion-mnist",
    )
)
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="An image set, as `candidly data list` calls it.")
    ],
    data_dir: DataDir = None,
    mirror: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Folder of a server that holds the same official files."),
    ] = None,
) -> None:
    """Download an image set, verify it and unpack it. An interrupted download starts again from the beginning."""
    from candidly.bench.sources.fetch import fetch_set

    echo(fetch_set(name, data_dir, mirror))


@data_app.command(
    "list", epilog=_examples("candidly data list", "candidly data list --data-dir ~/data --json")
)
def list_sets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the image sets, which parts of them are there, and their official pages."""
    from candidly.bench.sources.catalogue import survey, survey_text

    echo_json(survey(data_dir)) if as_json else echo(survey_text(data_dir))


bench_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    short_help="The paper's tables and figures.",
    help="The paper's tables and figures: `run` trains what is missing, `show` and `figure` show what is there.",
)
app.add_typer(bench_app, name="bench")

Table = Annotated[
    str, typer.Argument(metavar="TABLE", help="table1 (all methods), table2 (ablations) or params.")
]
ScaleName = Annotated[
    str, typer.Option("--scale", metavar="SCALE", help="`candidly bench scales` lists them.")
]
ThatScale = Annotated[
    str | None,
    typer.Option(
        "--scale", metavar="SCALE", help="Otherwise the only one that there are results of."
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
    int | None, typer.Option(min=1, help="Number of seeds; otherwise that of the scale.")
]
OneTau = Annotated[
    tuple[float, float] | None,
    typer.Option("--tau", metavar="TAU1 TAU2", help="This tau instead of the paper's two."),
]
Runs = Annotated[Path, typer.Option("--out", help="Folder of the RUN folders.")]


@bench_app.command(
    "run",
    epilog=_examples(
        "candidly bench run table1 --scale digits",
        'candidly bench run table1 --scale mini --data-dir ~/data --cells "svhn*" --methods "ooc*" --seeds 1 --dry-run',
    ),
)
def bench_run(
    table: Table,
    scale: ScaleName,
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
    """Train what is not finished of a table, and print it. Stop it at any time; the same command goes on."""
    from candidly.bench import commands
    from candidly.bench.results import load_results

    jobs = commands.jobs(table, scale, cells, methods, seeds, tau, part)
    if dry_run:
        echo(commands.planned(jobs, out, data_dir))
        return
    with heap.kept():
        done = commands.run(jobs, out, data_dir, retry, device)
    echo(done, err=True)
    if part == "1/1":
        _table(jobs, table, load_results(out), out)


@bench_app.command(
    "show", epilog=_examples("candidly bench show table1 --scale digits --format latex")
)
def bench_show(
    table: Table,
    scale: ThatScale = None,
    cells: Cells = None,
    methods: Rows = None,
    seeds: Seeds = None,
    tau: OneTau = None,
    out: Runs = Path("runs/bench"),
    results: Annotated[
        Path | None, typer.Option(help="A file written by `bench export`, read as well.")
    ] = None,
    style: Annotated[str, typer.Option("--format", help="md, csv or latex.")] = "md",
    details: Annotated[
        bool, typer.Option("--details", help="In md: precision of the groups, seconds per epoch.")
    ] = False,
) -> None:
    """Print a table: mean and spread over the seeds, the best in bold, the paper's number and the difference."""
    from candidly.bench import commands
    from candidly.bench.results import load_results

    found = load_results(out, results)
    chosen = commands.scale_of(scale, found, results or out)
    jobs = commands.jobs(table, chosen, cells, methods, seeds, tau)
    _table(jobs, table, found, out, style, details)


def _table(
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


@bench_app.command(
    "figure",
    epilog=_examples(
        "candidly bench figure precision --scale digits --run --file precision.svg",
        "candidly bench figure losses --scale features --results results/features.jsonl --file losses.pdf",
    ),
)
def bench_figure(
    figure: Annotated[
        str, typer.Argument(metavar="FIGURE", help="losses, precision, params or examples.")
    ],
    scale: ThatScale = None,
    file: Annotated[
        Path | None, typer.Option(help="The picture: .png, .svg or .pdf; otherwise FIGURE.png.")
    ] = None,
    open_set: Annotated[
        str | None, typer.Option("--open", help="Where the open examples come from.")
    ] = None,
    data_dir: DataDir = None,
    out: Runs = Path("runs/bench"),
    results: Annotated[
        Path | None, typer.Option(help="A file written by `bench export`, read as well.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--run", help="Train the runs that are missing first.")
    ] = False,
) -> None:
    """Draw one of the paper's figures from runs of seed 0; `examples` also needs the images."""
    from candidly.bench import commands

    file = file or Path(f"{figure}.png")
    echo(commands.figure(figure, scale, open_set, out, results, data_dir, file, train))


@bench_app.command("export", epilog=_examples("candidly bench export results/digits.jsonl"))
def bench_export(
    file: Annotated[Path, typer.Argument(help="JSON lines, one a finished run.")],
    out: Runs = Path("runs/bench"),
) -> None:
    """Write the results of all finished runs into one small file, for `bench show --results`."""
    from candidly.bench.results import export

    echo(export(file, out))


@bench_app.command("scales", epilog=_examples("candidly bench scales"))
def bench_scales() -> None:
    """List the scales; times of one core, two runs at once on two cores."""
    from candidly.bench.scales import SCALES

    echo("\n".join(f"{scale.name:10} {scale.about}" for scale in SCALES.values()))
