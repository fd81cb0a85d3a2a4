"""Kubernetes quantities as exact integers in base units."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def parse_quantity(text: str, resource: str, *, round_up: bool = True) -> int:
    """The amount in base units: millicores for `cpu`, bytes or pieces for the rest.

    Requests round up and what a node offers rounds down (`round_up=False`), so that fractions never promise too
    much. Raises ValueError on text that isn't a quantity.
    """
    number, factor = text, Decimal(1)
    for length in (2, 1):
        suffix = text[-length:]
        if suffix in _SUFFIXES and len(text) > length:
            number, factor = text[:-length], _SUFFIXES[suffix]
            break
    try:
        amount = Decimal(number) * factor * (1000 if resource == "cpu" else 1)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as 4, 500m or 16Gi") from None
    whole = int(amount)
    return whole + 1 if round_up and amount > whole else whole
