"""Searches that cannot hang, lie or leak: CompileIQ's ``Search`` with a worker of our own."""
