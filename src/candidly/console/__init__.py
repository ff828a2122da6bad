"""What people see in a terminal: text, tables and progress."""
