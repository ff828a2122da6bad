"""The jobs behind the commands that read files and write RUN folders."""
