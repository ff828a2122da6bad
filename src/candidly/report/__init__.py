"""The HTML report of an audit: one file, no network."""
