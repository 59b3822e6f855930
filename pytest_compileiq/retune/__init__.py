"""``--ciq-retune``: where an ACF wins no more, search for one that does, and offer it."""
