"""Outcome: what one verification decided, and the words for it.

The backbone looks at the last committed token and K draft tokens at once, K+1 rows, and picks a
token of its own after each. Then

    accepted tokens   the leading draft tokens that equal the backbone's picks, 0…K of them;
    next token        the one token the backbone adds itself in every round. It is called
      recovered       when it replaces a refused draft token, and
      bonus           when all draft tokens were accepted and it follows the last of them.

A round therefore emits accepted tokens + next token, 1…K+1 tokens, and its acceptance length counts
the next token in. An empty draft gives a round of one token, whose next token is a bonus.
"""

from dataclasses import dataclass

from headlong.decode.sampling import Pick


@dataclass(frozen=True, slots=True)
class Verdict:
    """The backbone's picks for one round: the accepted tokens, then the next token."""

    picks: tuple[Pick, ...]
    num_accepted: int

    def __post_init__(self) -> None:
        assert len(self.picks) == self.num_accepted + 1, "a round ends with exactly one next token"
