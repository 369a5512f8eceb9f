"""Everything Headlong can refuse, as one tree.

    HeadlongError
    ├── SourceError             a model could not be found or brought here
    │   ├── OfflineError        the place it lives at cannot be reached
    │   └── DiskFullError       there is no room to keep it
    ├── CheckpointError         a model file is damaged, or not what it says
    │   ├── TensorError         tensors are missing, of the wrong shape or of an unknown type
    │   └── ArchitectureError   the file is fine, but its architecture is not supported
    ├── HeadError               a head does not fit its backbone
    ├── TextError               tokenizer or chat template cannot do what was asked
    ├── RequestError            a request asks for something impossible
    ├── BusyError               the engine has all the requests it can hold; come back later
    ├── EngineError             a pass broke off inside the engine; only its request is lost
    │   └── GarbledError        an engine in another process sent what cannot be read
    ├── EngineDownError         the server's engine has ended and takes nothing in any more
    ├── StoppingError           the server is shutting down and takes nothing in any more
    ├── AddressError            the server cannot listen where it was told to
    └── BackendError            a compute backend cannot be used on this machine

Every error says what is wrong, with the value, and what to do about it. Front doors print these two
sentences and nothing else; a traceback means a bug of ours.
"""


class HeadlongError(Exception):
    """A refusal: what is wrong (`problem`) and what to do about it (`remedy`)."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem} {remedy}".strip())
        self.problem = problem
        self.remedy = remedy


class SourceError(HeadlongError):
    """A model could not be found or brought to this machine."""


class OfflineError(SourceError):
    """The place a model lives at cannot be reached."""


class DiskFullError(SourceError):
    """There is no room on disk for a model."""


class CheckpointError(HeadlongError):
    """A model file is damaged, truncated, or not what it says it is."""


class TensorError(CheckpointError):
    """Tensors are missing, of the wrong shape, or of a type we cannot read."""


class ArchitectureError(CheckpointError):
    """The file is readable, but its architecture is not one we know."""


class HeadError(HeadlongError):
    """A head does not fit its backbone, or is broken in itself."""


class TextError(HeadlongError):
    """A tokenizer or chat template cannot do what was asked."""


class RequestError(HeadlongError):
    """A request asks for something impossible; nothing has been run.

    `param` is the field at fault where it is known, as OpenAI writes it: tools[1].function.name.
    """

    def __init__(self, problem: str, remedy: str = "", param: str | None = None) -> None:
        super().__init__(problem, remedy)
        self.param = param


class BusyError(HeadlongError):
    """The engine's queue is full; `retry_after_s` is when there should be room."""

    def __init__(self, problem: str, remedy: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(problem, remedy)
        self.retry_after_s = retry_after_s


class EngineError(HeadlongError):
    """A pass broke off for a reason that is a bug of ours; the cause is chained to it."""


class GarbledError(EngineError):
    """An engine in another process sent what cannot be read, or broke its answer off."""


class EngineDownError(HeadlongError):
    """The server's engine has ended for a reason that is a bug of ours; it must be restarted."""


class StoppingError(HeadlongError):
    """The server is shutting down: it takes no new requests, and cuts those that take too long."""


class AddressError(HeadlongError):
    """The server cannot listen at the address it was given."""


class BackendError(HeadlongError):
    """A compute backend cannot be used on this machine."""
