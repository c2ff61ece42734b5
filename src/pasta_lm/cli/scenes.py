"""Written answers for ``pasta play``, in annotator form: their lengths are counted when played."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scene:
    """A question and its answer."""

    prompt: str
    answer: str


DINNER = Scene(
    "How do I cook pasta al pomodoro for four?",
    """Four things can happen at once, so begin them together.

Sauce: <async topic="tomato sauce">Warm a good pour of olive oil with two crushed cloves of garlic \
until the kitchen smells of it. Take the garlic out, tip in two tins of peeled tomatoes, crush \
them with a spoon, salt them a little, and let them simmer gently until the oil rises to the \
top.</async>

Water: <async topic="salted water">Fill your largest pot, put the lid on and bring it to a \
rolling boil. Salt it only then, a small handful, until it tastes like a calm sea. Keep one cup \
of it for later.</async>

Cheese: <async topic="cheese and basil">Grate a generous bowl of pecorino. Tear the basil by hand \
at the last moment, because a knife would bruise it.</async>

Table: <async topic="the table">Lay four deep plates in a warm oven, open the wine and call \
everybody now; they will be late anyway.</async>

<sync/>Now they meet. Lift the pasta out of the water two minutes early, straight into the \
simmering sauce. Loosen it with a little from the cup, toss until it shines, take it off the \
fire and fold in the cheese and the basil. Nobody waited for anybody, and dinner is ready.""",
)

SUNDAY = Scene(
    "Plan a rainy Sunday at home.",
    """A slow day in three parts, none of which depends on the others.

Morning: <async topic="slow morning">Sleep until the rain wakes you. Make a large pot of tea, bake \
something with cinnamon, and read the first chapter of the book that has been waiting since \
spring.</async>

Afternoon: <async topic="long afternoon">Put on boots and walk to the river, to see how high it \
stands. Come home wet, hang everything over the radiators, and play a record from beginning to \
end, both sides, doing nothing else.</async>

Evening: <async topic="warm evening">Cook soup for too many people and call the neighbours. Light \
candles rather than lamps, and let somebody else choose the film.</async>

<sync/>Tea, a river, soup: if one of the three fails, the other two are still a good Sunday.""",
)

SCENES = {"dinner": DINNER, "sunday": SUNDAY}
