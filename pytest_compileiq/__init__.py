"""pytest-compileiq: kernel-tuning regression tests for NVIDIA CompileIQ."""
