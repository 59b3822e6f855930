"""What is tested: kernels that can be built with and without an ACF, and opaque objectives."""
