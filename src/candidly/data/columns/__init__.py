"""Columns of a table: the part that each plays, labels in cells and lists, tables to datasets."""
