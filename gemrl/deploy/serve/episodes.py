"""The step of each episode, for clients that do not count."""

from collections import OrderedDict

# Some minutes of a large fleet: an entry takes about 200 bytes.
MOST = 100_000


class Episodes:
    """Counts steps by episode. The least recently used of too many are forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.next: OrderedDict[str, int] = OrderedDict()
        self.forgotten = 0

    def step(self, episode: str, t: int | None = None) -> int:
        """The episode's present step: `t` where the client says it, else the count so far."""
        now = self.next.pop(episode, 0) if t is None else t
        self.next.pop(episode, None)
        self.next[episode] = min(now + 1, 2**31 - 1)
        if len(self.next) > self.most:
            self.next.popitem(last=False)
            self.forgotten += 1
        return now

    def give_back(self, episode: str, t: int) -> None:
        """Step `t` was counted, and no action came of it."""
        if self.next.get(episode) == t + 1:
            self.next[episode] = t
