"""`python -m candidly` and the command `candidly`."""

from candidly.cli import app

if __name__ == "__main__":
    app()
