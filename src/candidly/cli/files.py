"""Commands for your own data: inspect, fit, audit, report, predict and export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from candidly.cli import heap
from candidly.cli.options import Device, File, Json, examples, takes_reader_options
from candidly.console.terminal import counted, echo, echo_json, say
from candidly.errors import InputError, require_modules

file_commands = typer.Typer()

NewRun = Annotated[Path, typer.Option("--out", metavar="RUN", help="New folder for the results.")]
ModelRun = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `fit` wrote.")]
OldRun = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `fit` or `audit` wrote.")]
NewFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="New file to write.")]
NoRows = Annotated[
    bool,
    typer.Option(
        "--no-rows",
        help="Leave rows and names of annotators out of report and findings, so that you can share "
        "them, and write no probs.npz. Do not share audit.csv, audit.parquet and run.json.",
    ),
]
PageOnly = Annotated[
    bool,
    typer.Option(
        "--no-rows",
        help="Leave rows and names of annotators out of the report, so that you can share it.",
    ),
]
FailAbove = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        min=0,
        max=1,
        help="Exit with code 1 if the truth is outside the candidates in more than this share of "
        "the rows, by the low end of the interval.",
    ),
]

PROCESSES = {
    "auto": "what explains the data best",
    "blind": "wrong candidates are random",
    "confusion": "people mix up classes, all alike",
    "annotators": "each person errs in their own way",
    "union": "a set joins answers of unnamed people",
    "inclusion": "wrong candidates follow the true class",
}
ProcessName = Annotated[
    str,
    typer.Option(
        "--process",
        metavar="|".join(PROCESSES),
        # \b keeps the lines as they are.
        help="How the candidates came about:\n\n\b\n"
        + "\n".join(f"{name}: {meaning}" for name, meaning in PROCESSES.items()),
    ),
]


@file_commands.command(
    short_help="Show what a file of candidate labels contains.",
    epilog=examples(
        "candidly inspect photos.csv",
        "candidly inspect reviews.csv --labels ann1,ann2,ann3 --text review --classes classes.txt",
        "candidly inspect export.json --json",
    ),
)
@takes_reader_options()
def inspect(file: File, reader: dict[str, Any], as_json: Json = False) -> None:
    """Show what a file of candidate labels contains, and what is unusual about it.

    Nothing is trained or written.
    """
    from candidly.data import read_file
    from candidly.data.facts import collect_facts, render_facts

    facts = collect_facts(read_file(file, **reader))
    echo_json(facts) if as_json else say(render_facts(facts, reader))


@file_commands.command(
    short_help="Train on a file, audit its rows, write a report.",
    epilog=examples(
        "candidly fit photos.csv --out run",
        "candidly fit reviews.csv --labels ann1,ann2 --text review --out run --fail-above 0.05",
        "candidly fit table.parquet --method proden --epochs 30 --folds 3 --out run --json",
    ),
)
@takes_reader_options()
def fit(
    file: File,
    out: NewRun,
    reader: dict[str, Any],
    method: Annotated[
        str,
        typer.Option(help="`candidly methods` lists them; auto: candid."),
    ] = "auto",
    preset: Annotated[
        str, typer.Option(help="Preset of the method's settings; auto: robust, if there is one.")
    ] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; repeatable."),
    ] = None,
    encoder: Annotated[
        str, typer.Option(help="Encoder of images: lite0, or none to use their pixels.")
    ] = "lite0",
    epochs: Annotated[
        str, typer.Option(metavar="N|auto", help="Length of each training.")
    ] = "auto",
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the folds and the training.")
    ] = 0,
    device: Device = "auto",
    folds: Annotated[
        int, typer.Option(min=2, help="Each row is judged by a net trained on the other folds.")
    ] = 5,
    process: ProcessName = "auto",
    no_rows: NoRows = False,
    fail_above: FailAbove = None,
    as_json: Json = False,
) -> None:
    """Train a classifier on candidate labels, find rows whose truth is outside, write a report."""
    require_modules("candidly fit", "torch", "safetensors")
    from candidly.workspace.jobs import Training, fit_file

    training = Training(
        method, preset, tuple(settings or ()), encoder, _epochs(epochs), seed, device, folds
    )
    with heap.keeping_freed_memory():
        found = fit_file(
            file, out, reader=reader, training=training, process=process, rows=not no_rows
        )
    _print_findings(out, found, as_json, fail_above)


def _epochs(text: str) -> int | str:
    if text == "auto":
        return text
    if text.isdecimal():
        return int(text)
    raise typer.BadParameter(f"{text!r} is neither a number nor auto.", param_hint="--epochs")


@file_commands.command(
    short_help="Audit a file by the outputs of your own model.",
    epilog=examples(
        "candidly audit photos.csv --probs probabilities.npy --out run",
        "candidly audit reviews.csv --labels ann1,ann2 --probs logits.parquet --out run --json",
    ),
)
@takes_reader_options()
def audit(
    file: File,
    probs: Annotated[
        Path,
        typer.Option(
            metavar="P",
            help="Probabilities or logits of your own model, one column per class: .npy, .npz, "
            "CSV or Parquet.",
        ),
    ],
    out: NewRun,
    reader: dict[str, Any],
    process: ProcessName = "auto",
    no_rows: NoRows = False,
    fail_above: FailAbove = None,
    as_json: Json = False,
) -> None:
    """Find rows whose truth is outside their candidates by the outputs of your own model.

    Nothing is trained. The outputs must be for rows that the model was not trained on, such as
    those of cross-validation.
    """
    from candidly.workspace.jobs import audit_file

    found = audit_file(file, probs, out, reader=reader, process=process, rows=not no_rows)
    _print_findings(out, found, as_json, fail_above)


def _print_findings(
    out: Path, findings: dict[str, Any], as_json: bool, fail_above: float | None
) -> None:
    """Print what was found; with `--fail-above`, the exit code says it too.

    A gate that cannot be checked, since the model knows no more than chance, fails with code 2.
    """
    from candidly.cli.summary import render_summary, summary

    if as_json:
        echo_json(summary(out, findings))
    else:
        say(render_summary(out, findings))
    if fail_above is None:
        return
    if not findings["reliable"]:
        raise InputError(f"--fail-above cannot be checked. {findings['explanation']}")
    low = findings["shares"]["outside"]["low"]
    if low > fail_above:
        echo(
            f"candidly: at least {low:.1%} of the rows have their truth outside their candidates, "
            f"more than {fail_above:.1%}.",
            err=True,
        )
        raise typer.Exit(1)


@file_commands.command(epilog=examples("candidly report run", "candidly report run --no-rows"))
def report(run: OldRun, no_rows: PageOnly = False, as_json: Json = False) -> None:
    """Write the report of a RUN again.

    What `--no-rows` left out when the RUN was made stays out.
    """
    from candidly.workspace.jobs import rebuild

    page = str(rebuild(run, rows=not no_rows))
    echo_json({"run": str(run), "report": page}) if as_json else echo(page)


@file_commands.command(
    epilog=examples("candidly predict run new.csv --out predicted.csv --reject 0.05")
)
@takes_reader_options("id", "images", "text", "features", "max_memory")
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
            help='Label rows that look like no class as "none of the classes"; this share of the '
            "known ones is lost.",
        ),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Classify the rows of a file by the model of a RUN.

    Inputs are found as in training, unless you name them. If the model was trained on rows of
    several annotators, the rows of one id are one example.
    """
    require_modules("candidly predict", "torch", "safetensors")
    from candidly.cli.summary import render_predictions
    from candidly.workspace.jobs import predict_file

    done = predict_file(run, file, out, reader=reader, reject=reject, device=device)
    echo_json(done) if as_json else echo(render_predictions(done))


@file_commands.command(
    short_help="Write the input again with corrected sets.",
    epilog=examples(
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
            "--replace", help="The suggestion replaces the candidates instead of joining them."
        ),
    ] = False,
    keep_open: Annotated[bool, typer.Option("--keep-open", help="Keep rows of no class.")] = False,
    as_json: Json = False,
) -> None:
    """Write the input again with corrected candidate sets, in its own format.

    The input file is not changed. A row judged closed gets the suggested label; a row judged open
    is left out. The columns consensus_label and consensus_probability have the most likely truth
    of each row. Tasks of Label Studio get it as a prediction with a score.
    """
    from candidly.workspace.jobs import export_run

    done = export_run(run, out, input_file=input_file, replace=replace, keep_open=keep_open)
    written = (
        f"{out}: {counted(done['rows'], 'row')}, {done['corrected']:,} of them corrected, "
        f"{done['left_out']:,} left out"
    )
    echo_json(done) if as_json else echo("\n".join([written, *done["notes"]]))
