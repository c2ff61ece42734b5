"""What a model reads around a prompt in Skeleton-of-Thought; every change is a new version.

The prompts ask for what those of the paper ask for. Theirs state the question anew for every
point; ours goes on from the skeleton, so that prompt and skeleton are computed once.

Source: Ning et al. 2024, "Skeleton-of-Thought", arXiv 2307.15337, prompts 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wording:
    """The words around a prompt, a skeleton and its points.

    Attributes:
        version: Names it in records of runs.
        question: What the user says, with the prompt as {question}.
        lead: What the model's skeleton begins with: it is given, not decoded.
        point: What asks for one point, with its {number} and {point}.
        is_turn: Whether the user says that, after the skeleton as the model's turn.
        opening: What the model's text of a point begins with: given, and part of the answer.
    """

    version: str
    question: str
    lead: str
    point: str
    is_turn: bool = False
    opening: str = ""


FINETUNED = Wording(
    version="finetuned-1",
    question="{question}",
    lead="Skeleton:\n",
    point="\nPoint {number}: {point}\n",
)
"""For a model that was trained to write skeletons and to expand their points."""

PROMPTED = Wording(
    version="prompted-1",
    question="""\
You are an organizer who gives only the skeleton of an answer, not its full content. Give the \
skeleton as a list of points, numbered 1., 2., 3. and so on. No point is a full sentence: each is \
very short, 3 to 5 words. Most skeletons have 3 to 10 points.

Question:
What are the typical types of Chinese dishes?
Skeleton:
1. Dumplings.
2. Noodles.
3. Dim sum.
4. Hot pot.
5. Fried rice.

Question:
What can one person do to reduce carbon emissions?
Skeleton:
1. Save energy at home.
2. Travel by train.
3. Eat less meat.
4. Buy used things.

Now give the skeleton of the answer to this question.
{question}
Skeleton:""",
    lead="1.",
    point="""\
Now write out one point of your skeleton and no other: point {number}. Continue it in one or two \
short sentences, and do not go on to the next point.""",
    is_turn=True,
    opening="{number}. {point}",
)
"""For a model that follows instructions, in the paper's two-shot form."""
