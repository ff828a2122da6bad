"""Readers: files of the world into arrays."""
