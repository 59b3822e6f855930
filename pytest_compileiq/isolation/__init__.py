"""Running code that may crash, hang or exit, in a process that may be killed."""
