"""Every error that ciar-fleet raises on purpose, and the exit code it ends a command with.

FleetError                    1   anything below; never raised itself
├── InvalidInputError         2   a caption, path, option or setting that cannot be used
├── TransportError            3   no broker, or the link was refused
│   └── RequestTimeout        3   a request was not answered before its deadline
├── BundleError               4   a bundle whose hashes, signature, format or family is wrong
├── StoreError                5   a database that cannot be opened, or is of another revision
├── AddressInUseError         6   a port that another process holds
├── ProtocolError             7   a message that is not ours, too large, or of an unknown version
├── CapacityError             8   a bounded queue is full
└── OutputError               9   a result that cannot be written
"""

from typing import ClassVar


class FleetError(Exception):
    """Anything that ciar-fleet refuses or cannot do, said in one sentence."""

    exit_code: ClassVar[int] = 1


class InvalidInputError(FleetError):
    """An input that cannot be used as given; the sentence says what to change."""

    exit_code = 2


class TransportError(FleetError):
    """The broker cannot be reached, or refuses the link."""

    exit_code = 3


class RequestTimeout(TransportError):
    """A request was not answered before its deadline."""


class BundleError(FleetError):
    """A model bundle whose hashes, signature, format or family is wrong."""

    exit_code = 4


class StoreError(FleetError):
    """A database that cannot be opened, or stands at another revision than this release."""

    exit_code = 5


class AddressInUseError(FleetError):
    """A port that another process holds."""

    exit_code = 6


class ProtocolError(FleetError):
    """A message that is not ours, too large, or of an unknown version."""

    exit_code = 7


class CapacityError(FleetError):
    """A bounded queue is full; the sentence says which, and when to come back."""

    exit_code = 8


class OutputError(FleetError):
    """A result that cannot be written where it was asked for."""

    exit_code = 9
