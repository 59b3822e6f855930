"""Which GPU, for whom, at which clock: identity, lease, clocks, guardian, monitor."""
