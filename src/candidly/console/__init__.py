"""The terminal: text, tables and progress."""
