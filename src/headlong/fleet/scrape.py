"""Scrapes: numbers out of Prometheus' text format, as engines publish them."""

from collections.abc import Mapping


class Scrape:
    """The values of one scrape, by name; a name may come with several labels."""

    def __init__(self, metrics: str) -> None:
        values: dict[str, list[float]] = {}
        for line in metrics.splitlines():
            named, _, value = line.rpartition(" ")
            if named and not line.startswith("#"):
                values.setdefault(named.partition("{")[0], []).append(_number(value))
        self._values: Mapping[str, list[float]] = values

    def total(self, name: str) -> int | None:
        """Return a count, summed over all labels; None where it is not published."""
        found = self._values.get(name)
        return None if found is None else int(sum(found))

    def highest(self, name: str) -> float | None:
        """Return the highest value of any label; None where it is not published."""
        return max(self._values.get(name, ()), default=None)


def _number(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        return 0.0
    return number if 0 <= number < 1e18 else 0.0  # NaN as well
