"""`python -m candidly` and the command `candidly`."""

import sys

from candidly.errors import CandidlyError, Interrupted


def main() -> None:
    """Run the command line; what the user can mend is told in a sentence, without a traceback."""
    from candidly.cli import app

    try:
        app()
    except CandidlyError as error:
        print(f"candidly: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as error:
        print(f"\ncandidly: {error}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
