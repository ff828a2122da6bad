"""Files on disk: written whole, locked and hashed; RUN folders."""
