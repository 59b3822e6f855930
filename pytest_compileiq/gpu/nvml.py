"""The only door to NVML: the unmodified ``pynvml``, in the guardian's process alone."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 2, 3, 4
TIMEOUT, FUNCTION_NOT_FOUND, LOST, RESET_REQUIRED = 10, 13, 15, 16
DEPRECATED, NOT_READY, UNKNOWN = 26, 27, 999
#: Not an NVML code: the module that answers to ``import pynvml`` is not NVIDIA's.
WRONG_PACKAGE = -1

#: What this plugin calls without an alternative; pynvml 11.5.3 lacks some of it.
_NEEDED = (
    "nvmlInitWithFlags",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetFieldValues",
    "NVMLLibraryMismatchError",
)


class Fault(Exception):
    """An NVML call that did not succeed; ``code`` is the numeric nvmlReturn_t."""

    def __init__(self, code: int, call: str, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.code, self.call, self.text = code, call, text

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "call": self.call, "text": self.text}


class Nvml:
    """An initialised NVML. Raises Fault, with WRONG_PACKAGE when pynvml is another package."""

    def __init__(self) -> None:
        try:
            import pynvml
        except Exception as error:
            raise Fault(
                WRONG_PACKAGE, "import pynvml", f"{type(error).__name__}: {error}"
            ) from None
        missing = [name for name in _NEEDED if not hasattr(pynvml, name)]
        if missing:
            where = getattr(pynvml, "__file__", None)
            text = f"{where} is not NVIDIA's nvidia-ml-py: it lacks {', '.join(missing)}"
            raise Fault(WRONG_PACKAGE, "import pynvml", text)
        self._library = pynvml
        self.call("nvmlInitWithFlags", 0)

    def call(self, name: str, *args: Any) -> Any:
        """Call one function. Raises Fault, also for a function that the driver lacks."""
        function = getattr(self._library, name, None)
        if function is None:
            raise Fault(FUNCTION_NOT_FOUND, name, "this nvidia-ml-py has no such function")
        try:
            return function(*args)
        except self._library.NVMLError as error:
            raise Fault(error.value, name, str(error)) from None
        except self._library.NVMLLibraryMismatchError as error:
            # Three process lists raise this for a symbol that is absent, and it is no NVMLError.
            raise Fault(FUNCTION_NOT_FOUND, name, str(error)) from None

    def field_values(self, handle: Any, ids: tuple[int, ...]) -> list[int | None]:
        """Counters by field id; None for each that this card does not have. Raises Fault."""
        values = self.call("nvmlDeviceGetFieldValues", handle, list(ids))
        return [None if value.nvmlReturn else int(value.value.ullVal) for value in values]

    def constant(self, name: str) -> Any:
        return getattr(self._library, name)
