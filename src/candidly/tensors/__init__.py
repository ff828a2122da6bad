"""Torch code below the methods: nets, views, packed bits, precision, processes."""
