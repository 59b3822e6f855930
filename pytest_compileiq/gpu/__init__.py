"""A GPU of one's own: which one, held by one test at a time, clocks locked and given back.

Two kinds of process. In pytest: ``identity`` (SPEC to UUID), ``lease`` (one holder at a time),
``clocks`` and ``monitor`` (lock, watch), put together by ``session``. They never load NVML: a call
that hangs there cannot be ended, not even by a signal. Beside it runs ``guardian``, the only
process that talks to NVML, with ``nvml``, ``card``, ``lock``, ``journal`` and ``survey``; those
modules import the standard library only, as each test waits for their start. ``link`` joins both.

``stream`` belongs to neither: it is how a test's own process reaches CUDA.
"""
