"""`python -m candidly` and the command `candidly`."""

from candidly.cli.app import app

if __name__ == "__main__":
    app()
