"""What can go wrong with images."""


class ImagesError(Exception):
    """An image could not be built; the message says what to change or which command failed."""


class NoToolError(ImagesError):
    """Nothing on this machine can build images."""
